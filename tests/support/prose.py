"""What is written for people in this repository: docstrings, comments, messages, help, pages, in pieces.

A piece is a text with the line it begins on; white space is folded, so that a phrase over two lines is found.
"""

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from checkout import ROOT

SRC = ROOT / "src" / "raypipe"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(SRC.rglob("*.py"))


@dataclass(frozen=True, slots=True)
class Piece:
    """One docstring, one run of comment lines, one string, or one page."""

    file: Path
    line: int
    text: str

    def __str__(self):
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def folded(text):
    return " ".join(text.split())


def declares(node):
    """Whether it is a command of the command line, whose docstring is its help."""
    found = getattr(node, "decorator_list", ())
    return any(isinstance(d, ast.Name) and d.id == "command" for d in found)


NAMED = ("id", "attr", "arg", "name", "asname", "module", "rest")  # fields of nodes that hold a name


@cache
def pieces(file):
    """(docstrings, other strings, names) of a Python file, read once for all tests of a process."""
    described, texts, fixed, names = [], [], set(), set()
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    for node in nodes:
        names.update(v for v in map(vars(node).get, NAMED) if isinstance(v, str))
        if not declares(node):
            below = (child for field in ("body", "orelse", "finalbody") for child in _statements(node, field))
            described += [c.value for c in below if isinstance(c, ast.Expr)]
        if isinstance(node, ast.JoinedStr):
            fixed.update(node.values)
            parts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            texts.append(Piece(file, node.lineno, folded("".join(parts))))
    skipped = fixed.union(described)
    others = [
        n for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and n not in skipped
    ]
    texts += [Piece(file, n.lineno, folded(n.value)) for n in others]
    docs = [Piece(file, n.lineno, folded(n.value)) for n in described if isinstance(_text(n), str)]
    return docs, texts, names


def names(file):
    """Every name of the code; of an import its dotted names."""
    return pieces(file)[2]


def _statements(node, field):
    found = getattr(node, field, ())
    return found if isinstance(found, list) else ()


def _text(node):
    return getattr(node, "value", None)


def docstrings(file):
    """Of the module, its classes and functions, and strings that stand below a name as its description."""
    return pieces(file)[0]


def strings(file):
    """Every other string: messages, help texts, names; of an f-string its fixed parts, as one."""
    return pieces(file)[1]


def comments(file):
    """Comment lines that follow each other are one piece."""
    if file.suffix == ".py":
        source = io.StringIO(file.read_text(encoding="utf-8"))
        found = [
            (t.start[0], t.string)
            for t in tokenize.generate_tokens(source.readline)
            if t.type == tokenize.COMMENT
        ]
    else:
        lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        found = [(n, m.group()) for n, line in lines if (m := re.search(r"(?<!\S)(#|//).*", line))]
    while found:
        first = found[0][0]
        run = [text for n, (line, text) in enumerate(found) if line == first + n]
        yield Piece(file, first, folded(" ".join(text.lstrip("#!/ ") for text in run)))
        del found[: len(run)]


def paragraphs(page):
    """Of a page, with their first lines."""
    line = 1
    for text in re.split(r"(?<=\n)(?=\n)", page.read_text(encoding="utf-8")):
        yield Piece(page, line, folded(text))
        line += text.count("\n")


def commands(parser, path=()):
    """(words of a command, its parser), all of them, the one without words first."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for name, below in action.choices.items():
                yield from commands(below, (*path, name))
