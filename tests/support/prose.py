"""What is written for people in this repository: docstrings, comments, messages, help, pages, in pieces.

A piece is a text with the line it begins on; white space is folded, so that a phrase over two lines is found.
"""

import ast
import io
import re
import tokenize
from dataclasses import dataclass
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


def docstrings(file):
    """Of the module, its classes and functions, and strings that stand below a name as its description."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for child in () if declares(node) else ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(getattr(child.value, "value", None), str):
                yield Piece(file, child.lineno, folded(child.value.value))


def strings(file):
    """Every other string: messages, help texts, names; of an f-string its fixed parts, as one."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = [n for n in ast.walk(tree) if not declares(n)]
    described = {c.value for n in nodes for c in ast.iter_child_nodes(n) if isinstance(c, ast.Expr)}
    parts = {v for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            fixed = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            yield Piece(file, node.lineno, folded("".join(fixed)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in described | parts:
            yield Piece(file, node.lineno, folded(node.value))


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
