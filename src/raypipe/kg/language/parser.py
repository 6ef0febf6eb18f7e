"""The knowledge graph's call language: text to a program. Nothing is ever evaluated as code.

Knows the grammar as text (it is handed in: `conf/grammar/calls.lark`). Does not know tables or keys.

A program is several lines. They are cut apart first (at new lines and semicolons, and at commas outside every
bracket and string) and each is parsed alone, so one bad line never takes the others down: it stands in the
program as `Bad`, with what is wrong and where. Parsing raises nothing, whatever the text. Fixed readings: any
number of ALL is one ALL, also on a line of its own before the call; a bare number as a condition is a year;
names in single or curly quotes are quoted; the key "len" is always the count (a film's running time is
"length").
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeAlias

import lark

from raypipe.kg.language.program import (
    FUNCTIONS,
    Arg,
    Bad,
    Cond,
    Empty,
    Line,
    Mean,
    Names,
    Nothing,
    Number,
    Program,
    Query,
    Sort,
    Star,
    Tail,
    Text,
    Value,
)

MOST_CHARS: Final = 20_000  # a longer program is no program; a model's reply has some hundred
MOST_LINES: Final = 64

Parse: TypeAlias = Callable[[str], Program]

_WORDS_FOR: Final = {
    "STRING": "a quoted name", "WORD": "a name", "STAR": "*", "NONE": "None", "NUMBER": "a number",
    "CMP": "eq, neq, ge, le, gt or lt", "KEY": "a key", "LEN": "len", "INT": "a number", "COMMA": "a comma",
    "LPAR": "(", "RPAR": ")", "LSQB": "[", "RSQB": "]", "COLON": ":", "MINUS": "-", "SORT": "sort",
    "AVG": "AVG", "ALL": "ALL", "$END": "the end of the line",
}  # fmt: skip


class _Lexer(lark.lexer.ContextualLexer):
    """Lark's lexer without its search for pairs of terminals that overlap.

    That took 3 s of the 3.4 s in which this grammar is read, if the optional package it uses is installed. A
    test holds that whatever the grammar allows is parsed."""

    def __init__(self, conf: Any, states: Any, always_accept: Any = ()) -> None:
        conf.skip_validation = True
        super().__init__(conf, states, always_accept)


def parser(grammar: str) -> Parse:
    """A function that reads programs by the grammar in this text. A text that is no program
    gives a program of bad lines."""
    tolerant = grammar + "\n%ignore /[ \\t\\r\\f\\v]+/\n"
    reader = lark.Lark(
        tolerant,
        parser="lalr",
        start="line",
        maybe_placeholders=False,
        _plugins={"ContextualLexer": _Lexer},
    )

    def parse(text: str) -> Program:
        if len(text) > MOST_CHARS:
            why = f"expected a program of at most {MOST_CHARS} characters, found {len(text)}"
            return Program((Bad(text[:80], why, 0),))
        text = text.encode("utf-8", "replace").decode()  # a lone surrogate is no character
        text = _BROKEN.sub("\ufffd", text)
        lines: list[Line] = []
        pending: int | None = None
        for at, piece in _pieces(text):
            if len(lines) == MOST_LINES:
                lines.append(Bad(piece[:80], f"expected at most {MOST_LINES} lines, found more", at))
                break
            if _ONLY_ALL.fullmatch(piece):
                pending = at
                continue
            line = _line(reader, text, at, piece)
            lines.append(_all(line) if pending is not None else line)
            pending = None
        if pending is not None:
            lines.append(
                _bad(text, pending, "ALL", "expected a call after ALL, found the end of the program")
            )
        return Program(tuple(lines))

    return parse


_BROKEN = re.compile("\ufffd{2,}")
"""A character that a constrained decoder writes and that is none (three bytes of a surrogate) is read as
several replacement characters, and a name of a hundred would be one of more."""

_ONLY_ALL = re.compile(r"(?:all\s*)+", re.IGNORECASE)


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Offset and text of each line, blank ones omitted."""
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


def _line(reader: lark.Lark, text: str, at: int, piece: str) -> Line:
    try:
        return _read(reader.parse(piece))
    except lark.exceptions.UnexpectedInput as e:
        offset = at + min(max(getattr(e, "pos_in_stream", 0) or 0, 0), len(piece))
        if isinstance(e, lark.exceptions.UnexpectedToken) and e.token.type == "$END":
            offset = at + len(piece)
        name = _CALLED.match(piece)
        if name and name[1].lower() not in (*FUNCTIONS, "sort", "avg", "average"):
            return _bad(text, at + name.start(1), piece, _unknown(name[1]))
        return _bad(text, offset, piece, _expected(piece, e))


def _bad(text: str, at: int, piece: str, why: str) -> Bad:
    line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
    return Bad(piece, f"line {line}, column {column}: {why}", at)


_CALLED = re.compile(r"(?:(?:all|avg|average|\d+)[\s(]*)*(get_\w*|\w+(?=\())", re.IGNORECASE)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), FUNCTIONS, 1)
    return f"there is no call {name}" + (f"; did you mean {near[0]}?" if near else "")


def _expected(piece: str, e: Any) -> str:
    """What was expected, in words."""
    at = getattr(e, "pos_in_stream", None) or 0
    end = at >= len(piece) or getattr(getattr(e, "token", None), "type", "") == "$END"
    found = "the end of the line" if end else repr(piece[at : at + 20])
    wanted = sorted(set(getattr(e, "accepts", None) or getattr(e, "expected", None) or e.allowed or ()))
    words = dict.fromkeys(_WORDS_FOR.get(w, "a call") for w in wanted if w != "_SP")
    return f"expected {' or '.join(words) or 'a call'}, found {found}"


def _all(line: Line) -> Line:
    match line:
        case Query():
            return replace(line, everything=True)
        case Mean(Query() as of):
            return Mean(replace(of, everything=True))
        case _:
            return line


# ---------------------------------------------------------------- from Lark's tree


def _read(tree: Any) -> Line:
    """The line under the tree's root."""
    top = tree.children[0]
    match top.data:
        case "none":
            return Empty()
        case "sort":
            return _sort(top)
        case "mean":
            of = next(c for c in top.children if isinstance(c, lark.Tree))
            return Mean(_sort(of) if of.data == "sort" else _query(of))
        case _:
            return _query(top)


def _query(tree: Any) -> Query:
    everything, lead = False, None
    call = tree.children[-1]
    for c in tree.children[:-1]:
        if isinstance(c, lark.Tree):
            everything = True
        elif c.type == "INT":
            lead = int(c)
    name = str(call.children[0]).lower()
    args = tuple(_name(c) for c in call.children if isinstance(c, lark.Tree) and c.data == "name")
    where = [_conds(c) for c in call.children if isinstance(c, lark.Tree) and c.data == "conds"]
    return Query(name, args, where[0] if where else (), _tail(call.children[-1]), everything, lead)


def _sort(tree: Any) -> Sort:
    parts = {c.data: c for c in tree.children if isinstance(c, lark.Tree)}
    return Sort(_conds(parts["conds"]), _key(parts["key"]), "minus" in parts, _tail(parts["tail"]))


def _tail(tree: Any) -> Tail:
    key, count, first = None, False, None
    for c in tree.children:
        if isinstance(c, lark.Tree):
            key = _key(c)
        elif c.type == "LEN":
            count = True
        elif c.type == "INT":
            first = int(c)
    if key is not None and key.lower() == "len":
        key, count = None, True
    return Tail(key, count, first)


def _tokens(tree: Any) -> list[Any]:
    return [c for c in tree.children if isinstance(c, lark.Token) and c.type in _VALUES]


_VALUES = ("STRING", "WORD", "STAR", "KEY", "NUMBER", "NONE")


def _name(tree: Any) -> Arg:
    members = [c for c in tree.children if isinstance(c, lark.Tree)]
    if members:
        items = [_atom(_tokens(m)[0]) for m in members]
        named = tuple(i for i in items if isinstance(i, Text | Number))
        return Names(named) if named else Nothing()
    return _atom(_tokens(tree)[0])


def _conds(tree: Any) -> tuple[Cond, ...]:
    out: list[Cond] = []
    for c in tree.children:
        match c:
            case lark.Token(type="NUMBER"):
                out.append(_year(c))
            case lark.Tree(data="cond"):
                out.append(_cond(c))
            case lark.Tree(data="item"):
                inner = c.children[0]
                out.append(_cond(inner) if isinstance(inner, lark.Tree) else _year(inner))
    return tuple(out)


def _year(token: Any) -> Cond:
    return Cond("eq", "year", _number(str(token)))


def _cond(tree: Any) -> Cond:
    key, value = (c for c in tree.children if isinstance(c, lark.Tree))
    op: Any = str(tree.children[0]).lower()
    return Cond(op, _key(key), _atom(_tokens(value)[0]))


def _key(tree: Any) -> str:
    text = _plain(tree.children[0])
    return text.strip() or text


def _plain(token: Any) -> str:
    text = str(token)
    return re.sub(r'\\(["\\])', r"\1", text[1:-1]) if text.startswith('"') else text


_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,6})?", re.ASCII)
_QUOTES = {"'": "'", "\u2018": "\u2019", "\u201c": "\u201d", "`": "`"}  # straight, curly, double curly


def _atom(token: Any) -> Value:
    text = str(token)
    if text.startswith("*"):
        return Star(int(text[1:] or 0))
    if text.startswith('"'):
        value = _plain(token)
        return Text(value.strip() or value)
    if text.lower() == "none":
        return Nothing()
    if _NUMBER.fullmatch(text):
        return _number(text)
    if len(text) > 2 and _QUOTES.get(text[0]) == text[-1] and text[1:-1].strip():
        return Text(text[1:-1].strip())
    return Text(text, bare=True)


def _number(text: str) -> Number:
    return Number(float(text) if "." in text else int(text))
