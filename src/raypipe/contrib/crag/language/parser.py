"""Parser of the knowledge graph's call language: text to a program. Text is never evaluated as code.

The grammar (`conf/grammar/calls.lark`) also constrains the decoding of models. The parser accepts more:
people and free models vary case, spacing and separators. Tables and keys are not checked here.

Lines are split at new lines and semicolons, and at commas outside all brackets and strings. Each is parsed on
its own; a bad line becomes a `Bad` with error and position. No text makes parsing raise. Fixed readings:

- Several ALL are one ALL, even on a line of their own before the call.
- A bare number as a condition is a year.
- Names in single or curly quotes are quoted names.
- The key "len" is always the count; a film's running time is "length".
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

import lark

from raypipe.contrib.crag.language import program as p

MOST_CHARS: Final = 20_000  # longer text is no program; a model's reply has some hundred characters
MOST_LINES: Final = 64

T = TypeVar("T")
Parse: TypeAlias = Callable[[str], p.Program]

_WORDS_FOR: Final = {
    "STRING": "a quoted name",
    "WORD": "a name",
    "STAR": "*",
    "NONE": "None",
    "NUMBER": "a number",
    "CMP": "eq, neq, ge, le, gt or lt",
    "KEY": "a key",
    "LEN": "len",
    "INT": "a number",
    "COMMA": "a comma",
    "LPAR": "(",
    "RPAR": ")",
    "LSQB": "[",
    "RSQB": "]",
    "COLON": ":",
    "MINUS": "-",
    "SORT": "sort",
    "AVG": "AVG",
    "ALL": "ALL",
    "$END": "the end of the line",
}


class _Lexer(lark.lexer.ContextualLexer):
    """Lark's lexer without the search for overlapping terminals.

    That search took 3 s of the 3.4 s for reading this grammar, if its optional package is installed. A test
    checks that everything the grammar allows is parsed."""

    def __init__(self, conf: Any, states: Any, always_accept: Any = ()) -> None:
        conf.skip_validation = True
        super().__init__(conf, states, always_accept)


_READ: Final = {
    "query": "all? (INT _SP?)? call",
    "all": "(ALL (SEP | _SP)?)~1..3",
    "mean": '("AVG" | "average") "(" (inner | sort) ")"',
    "inner": "plain? (INT _SP?)? call",
    "plain": "(ALL _SP?)~1..2",
    "COMMA": '", " | ","',
    "SEP": r'"\n" | "; " | ";" | ", " | ","',
}
"""Rule of the grammar -> more tolerant definition that replaces it."""
_KEYWORD = re.compile(r'"[A-Za-z_]+"')
_EXACT: Final = ("LEN:", "//")  # "len" is a key, and keys are case-sensitive


def tolerant(grammar: str) -> str:
    """Widens a grammar: keywords match in any case; spacing and separators may vary.

    >>> tolerant('SEP: "\\\\n"\\nnone: "None"').splitlines()[:2]
    ['SEP: "\\\\n" | "; " | ";" | ", " | ","', 'none: "None"i']
    """
    lines = []
    for line in grammar.splitlines():
        name = line.partition(":")[0]
        read = f"{name}: {_READ[name]}" if name in _READ else line
        lines.append(read if read.startswith(_EXACT) else _KEYWORD.sub(r"\g<0>i", read))
    return "\n".join([*lines, r"%ignore /[ \t\r\f\v]+/", ""])


def parser(grammar: str) -> Parse:
    """Makes a function that parses programs by a grammar. Text that is no program gives bad lines."""
    reader = lark.Lark(
        tolerant(grammar),
        parser="lalr",
        start="line",
        maybe_placeholders=False,
        transformer=_Values(),
        _plugins={"ContextualLexer": _Lexer},
    )

    def parse(text: str) -> p.Program:
        if len(text) > MOST_CHARS:
            why = f"expected a program of at most {MOST_CHARS} characters, found {len(text)}"
            return p.Program((p.Bad(text[:80], why, 0),))
        text = text.encode("utf-8", "replace").decode()  # a lone surrogate is no character
        text = _BROKEN.sub("\ufffd", text)
        lines: list[p.Line] = []
        pending: int | None = None
        for at, piece in _pieces(text):
            if len(lines) == MOST_LINES:
                lines.append(p.Bad(piece[:80], f"expected at most {MOST_LINES} lines, found more", at))
                break
            if _ONLY_ALL.fullmatch(piece):
                pending = at
                continue
            line = _line(reader, text, at, piece)
            if pending is not None:
                inner = line.of if isinstance(line, p.Mean) else line
                if isinstance(inner, p.Query):
                    inner = replace(inner, everything=True)
                    line = p.Mean(inner) if isinstance(line, p.Mean) else inner
            lines.append(line)
            pending = None
        if pending is not None:
            why = "expected a call after ALL, found the end of the program"
            lines.append(_bad(text, pending, "ALL", why))
        return p.Program(tuple(lines))

    return parse


_BROKEN = re.compile("\ufffd{2,}")
"""Several replacement characters in a row, read as one. A constrained decoder may write a surrogate, whose
three bytes decode to several of them; a name of a hundred characters would become longer."""

_ONLY_ALL = re.compile(r"(?:all\s*)+", re.IGNORECASE)


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yields offset and text of each line that is not blank."""
    depth, quoted, start, i = 0, False, 0, 0
    while i <= len(text):
        c = text[i] if i < len(text) else "\n"
        if quoted and c == "\\":
            i += 1 if text[i + 1 : i + 2] in ("", "\n") else 2
            continue
        if c == '"':
            quoted = not quoted
        elif c == "\n" or (not quoted and (c == ";" or (c == "," and depth <= 0))):
            piece = text[start:i]
            if piece.strip():
                yield start + len(piece) - len(piece.lstrip()), piece.strip()
            start, depth, quoted = i + 1, 0, False
        elif not quoted:
            depth += (c in "([") - (c in ")]")
        i += 1


def _line(reader: lark.Lark, text: str, at: int, piece: str) -> p.Line:
    try:
        return reader.parse(piece)  # type: ignore[return-value]
    except lark.exceptions.UnexpectedInput as e:
        offset = at + min(max(getattr(e, "pos_in_stream", 0) or 0, 0), len(piece))
        if isinstance(e, lark.exceptions.UnexpectedToken) and e.token.type == "$END":
            offset = at + len(piece)
        name = _CALLED.match(piece)
        if name and name[1].lower() not in (*p.FUNCTIONS, "sort", "avg", "average"):
            near = difflib.get_close_matches(name[1].lower(), p.FUNCTIONS, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            return _bad(text, at + name.start(1), piece, f"there is no call {name[1]}{meant}")
        rest = piece[offset - at :]
        found = repr(rest[:20]) if rest else "the end of the line"
        names = (getattr(e, name, None) for name in ("accepts", "expected", "allowed"))
        wanted = sorted(set(next(filter(None, names), ())))
        words = dict.fromkeys(_WORDS_FOR.get(w, "a call") for w in wanted if w != "_SP")
        return _bad(text, offset, piece, f"expected {' or '.join(words) or 'a call'}, found {found}")


def _bad(text: str, at: int, piece: str, why: str) -> p.Bad:
    line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
    return p.Bad(piece, f"line {line}, column {column}: {why}", at)


_CALLED = re.compile(r"\A(?>(?:(?:all|average|avg|\d++)[\s(]*+)*)(get_\w*|\w+(?=\())", re.IGNORECASE)


_ALL: Final = object()
_MINUS: Final = object()


class _Values(lark.Transformer[Any, Any]):
    def line(self, c: list[Any]) -> Any:
        return c[0]

    def none(self, c: list[Any]) -> p.Line:
        return p.Empty()

    def all(self, c: list[Any]) -> object:
        return _ALL

    def minus(self, c: list[Any]) -> object:
        return _MINUS

    plain = all

    def query(self, c: list[Any]) -> Any:
        *before, call = c
        lead = next((int(x) for x in before if isinstance(x, lark.Token) and x.type == "INT"), None)
        return replace(call, everything=_ALL in before, lead=lead)

    inner = query

    def mean(self, c: list[Any]) -> p.Mean:
        return p.Mean(next(x for x in c if isinstance(x, p.Query | p.Sort)))

    def sort(self, c: list[Any]) -> p.Sort:
        key = next(x for x in c if type(x) is str)
        return p.Sort(_of(tuple, c), key, _MINUS in c, _of(p.Tail, c))

    def call(self, c: list[Any]) -> p.Query:
        args = tuple(x for x in c if isinstance(x, p.Arg))
        where = next((x for x in c if isinstance(x, tuple)), ())
        return p.Query(str(c[0]).lower(), args, where, _of(p.Tail, c))

    def tail(self, c: list[Any]) -> p.Tail:
        key = next((x for x in c if type(x) is str), None)
        first = next((int(x) for x in c if isinstance(x, lark.Token) and x.type == "INT"), None)
        count = any(isinstance(x, lark.Token) and x.type == "LEN" for x in c)
        if key is not None and key.lower() == "len":
            key, count = None, True
        return p.Tail(key, count, first)

    def name(self, c: list[Any]) -> p.Arg:
        if isinstance(c[0], lark.Token):
            return _atom(c[0])
        named = tuple(x for x in c if isinstance(x, p.Text | p.Number))
        return p.Names(named) if named else p.Nothing()

    def member(self, c: list[Any]) -> p.Value:
        return _atom(c[0])

    value = member

    def conds(self, c: list[Any]) -> tuple[p.Cond, ...]:
        return tuple(self.item([x]) for x in c if isinstance(x, p.Cond) or x.type == "NUMBER")

    def item(self, c: list[Any]) -> p.Cond:
        return c[0] if isinstance(c[0], p.Cond) else p.Cond("eq", "year", _number(str(c[0])))

    def cond(self, c: list[Any]) -> p.Cond:
        op: Any = str(c[0]).lower()
        return p.Cond(op, c[1], c[-1])

    def key(self, c: list[Any]) -> str:
        text = _plain(c[0])
        return text.strip() or text


def _of(kind: type[T], children: list[Any]) -> T:
    return next(x for x in children if isinstance(x, kind))


def _plain(token: Any) -> str:
    text = str(token)
    return re.sub(r'\\(["\\])', r"\1", text[1:-1]) if text.startswith('"') else text


_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,6})?", re.ASCII)
_QUOTES = {"'": "'", "\u2018": "\u2019", "\u201c": "\u201d", "`": "`"}  # straight, curly, double curly


def _atom(token: Any) -> p.Value:
    text = str(token)
    if text.startswith("*"):
        return p.Star(int(text[1:] or 0))
    if text.startswith('"'):
        value = _plain(token)
        return p.Text(value.strip() or value)
    if text.lower() == "none":
        return p.Nothing()
    if _NUMBER.fullmatch(text):
        return _number(text)
    if len(text) > 2 and _QUOTES.get(text[0]) == text[-1] and text[1:-1].strip():
        return p.Text(text[1:-1].strip())
    return p.Text(text, bare=True)


def _number(text: str) -> p.Number:
    return p.Number(float(text) if "." in text else int(text))
