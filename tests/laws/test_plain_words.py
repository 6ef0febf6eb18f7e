"""Private idiom is refused: each of these words stands for one that the field has, or for none at all.

"beside" is next to, "whoever" is the caller or the process, "is away" is unavailable, "anew" is again, "goes
on with" is resumes. Prompts, example questions and the invented world's texts are data, and are not read
here.
"""

import re

from prose import (
    MODULES,
    PAGES,
    ROOT,
    SRC,
    Piece,
    commands,
    comments,
    docstrings,
    folded,
    paragraphs,
    strings,
)

REFUSED = """
    gone on with, goes on with, whoever, whomever, nobody, beside, anew, till, for ever, is away,
    what is away, at hand, so many, and so forth, overheard
"""
PATTERN = re.compile(rf"\b({'|'.join(word.strip() for word in REFUSED.split(','))})\b", re.IGNORECASE)
SCRIPTS = [f for folder in ("bench", "jobs", "serve") for f in sorted((ROOT / folder).rglob("*.py"))]
SETTINGS = [
    f
    for folder in ("conf", "k8s", "serve")
    for f in sorted((ROOT / folder).rglob("*.yaml"))
    if ROOT / "conf" / "prompts" not in f.parents
] + [ROOT / name for name in ("Makefile", "Dockerfile", "pyproject.toml", "conf/grammar/calls.lark")]
DATA = {SRC / "contrib/world"}  # packages whose strings are texts of an invented world


def said(file):
    """All that a Python file says, but for data."""
    yield from docstrings(file)
    yield from comments(file)
    if not DATA & set(file.parents):
        yield from strings(file)


def refused(pieces):
    return [
        f"{piece}: ...{piece.text[max(0, m.start() - 40) : m.end() + 40]}..."
        for piece in pieces
        for m in PATTERN.finditer(piece.text)
    ]


def test_the_pattern_finds_whole_words_and_phrases_over_two_lines(tmp_path):
    file = tmp_path / "x.py"
    file.write_text('"""Stopped, it is gone\non with."""\nx = f"for {1} ever"  # till\n# tiller, besides\n')
    assert [m.group() for p in said(file) for m in PATTERN.finditer(p.text)] == ["gone on with", "till"]


def test_no_refused_word_in_a_module_or_a_script():
    found = refused(piece for file in [*MODULES, *SCRIPTS] for piece in said(file))
    assert not found, "\n".join(found)


def test_no_refused_word_in_the_comments_of_a_settings_file():
    found = refused(piece for file in SETTINGS for piece in comments(file))
    assert not found, "\n".join(found)


def test_no_refused_word_on_a_page():
    pages = [*PAGES, *sorted(SRC.rglob("*.html"))]
    found = refused(piece for file in pages for piece in paragraphs(file))
    assert not found, "\n".join(found)


def test_no_refused_word_in_any_help_text():
    from raypipe.api.cli.main import parser

    helps = [
        Piece(ROOT / " ".join(("raypipe", *words)), 1, folded(command.format_help()))
        for words, command in commands(parser())
    ]
    assert len(helps) > 20 and not refused(helps)
