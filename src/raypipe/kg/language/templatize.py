"""Turns a question and its calls into an example: shared names become placeholders.

Pure functions; knows programs and banks, no graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from raypipe.kg.language.example_bank import Domain, ExampleGroup
from raypipe.kg.language.program import KINDS, Mean, Names, Program, Query, Text, print_program, quoted


def example(question: str, program: Program, domain: Domain, rule: str = "value") -> ExampleGroup:
    """The example of a question and the program that answers it. Raises ValueError for a broken one.

    >>> from raypipe.kg.language.program import Tail
    >>> call = Query("get_movie", (Text("velora"),), (), Tail("length"))
    >>> made = example("How long is Velora?", Program((call,)), "movie")
    >>> made.questions, made.calls
    (('how long is {movie}?',), 'get_movie({movie})["length"]')
    """
    text, calls = " ".join(question.split()).lower(), print_program(program)
    kinds = dict(_names(program, domain))
    found = sorted((n for n in kinds if n.lower() in text), key=lambda n: text.index(n.lower()))
    for name in found:
        of_kind = [n for n in found if kinds[n] == kinds[name]]
        tag = "" if len(of_kind) == 1 else f":{'abcdefghi'[of_kind.index(name)]}"
        place = f"{{{kinds[name]}{tag}}}"
        text, calls = text.replace(name.lower(), place), calls.replace(quoted(name), place)
    return ExampleGroup(domain, calls, (text,), rule)


def _names(program: Program, domain: Domain) -> Sequence[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for line in program.lines:
        query = line.of if isinstance(line, Mean) else line
        if not isinstance(query, Query):
            continue
        for arg, kind in zip(query.args, KINDS[query.name], strict=False):
            items = arg.items if isinstance(arg, Names) else (arg,)
            kind = "artist" if kind == "person" and query.name == "get_person" and domain == "music" else kind
            out += [(i.value, kind) for i in items if isinstance(i, Text) and kind != "year"]
    return out
