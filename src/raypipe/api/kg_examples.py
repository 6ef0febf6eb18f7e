"""Examples of graph calls: drafted by a model, corrected by a person, added to a bank, as db3 chose its own.

A model drafts the calls of some questions; what fails is shown; a person corrects the lines worth keeping and
marks them; the import checks them and appends them to the bank that the next round's prompt is made of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from raypipe import readers
from raypipe.api.generators import replies
from raypipe.api.graphs import calls_parser
from raypipe.api.paths import Fields, format_for
from raypipe.api.results import outside_loop
from raypipe.api.session import Session
from raypipe.core.errors import ConfError, DataError
from raypipe.core.llm import Generated, Grammar, Sampling
from raypipe.core.records import Fault, Question
from raypipe.kg.execute import run
from raypipe.kg.graph import open_folder
from raypipe.kg.language.example_bank import Domain, ExampleGroup, example
from raypipe.kg.language.program import Bad
from raypipe.kg.language.time_words import moment
from raypipe.metrics.textfile import filled
from raypipe.readers.formats import Format
from raypipe.recipes.resolve import prompt_file
from raypipe.text.thoughts import split_thoughts

MAX_TOKENS = 300  # of a program


@outside_loop
def draft_examples(
    data: Sequence[str | Path], graph: str | Path, model: str, prompt: str = "db3/calls-open",
    number: int = 100, format: Format | None = None, session: Session | None = None,
    fields: Fields | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Drafts: the calls that a model writes for some questions, what they gave, and why they failed.

    `graph` is a folder of tables, `prompt` a name under conf/prompts, `fields` as `ingest` takes them.
    Raises ConfError, DataError.
    """
    session = session or Session()
    paths = [Path(p) for p in data]
    grammar, parse = calls_parser(session)
    rows = readers.open(paths, format_for(format, paths, fields), readers.ReadCounts())
    questions = [r.question for r in rows if r.question is not None][:number]
    said = asyncio.run(_said(session, model, prompt, questions, grammar))
    opened = open_folder(Path(graph))
    drafts = []
    for q, reply in zip(questions, said, strict=True):
        calls = split_thoughts(reply.text).answer if isinstance(reply, Generated) else ""
        results = asyncio.run(run(parse(calls), opened, moment(q.asked_at)))
        why = [r.fault.detail for r in results if r.fault]
        why += [f"unknown: {name}" for r in results for name in r.unknown]
        if isinstance(reply, Fault):
            why.append(reply.detail)
        values = list(results[-1].values[:5]) if results else []
        drafts.append(_line(q, calls, values, why))
    return drafts


async def _said(
    session: Session, model: str, name: str, questions: Sequence[Question], grammar: Grammar
) -> list[Generated | Fault]:
    prompt = prompt_file(session.settings.conf, name)
    if strange := set(prompt.variables) - {"text", "asked_at"}:
        raise ConfError(f"--prompt {name}: expected one of text and asked_at, found {min(strange)}")
    render = prompt.renderer()
    chats = [render({"text": q.text, "asked_at": q.asked_at}) for q in questions]
    sampling = Sampling(max_tokens=MAX_TOKENS, constraint=grammar)
    return await replies(session, session.catalog().model(model), chats, sampling)


def _line(question: Question, calls: str, values: list[Any], why: list[str]) -> dict[str, Any]:
    failed = "; ".join(why) or ("" if values or calls.strip() == "None" else "it gave nothing")
    return {
        "query": question.text, "query_time": question.asked_at, "calls": calls, "values": values,
        "failed": failed, "rule": "value", "use": False,
    }  # fmt: skip


def import_examples(
    drafts: str | Path, domain: Domain, into: str | Path, session: Session | None = None
) -> int:
    """Checks the drafts marked "use": true and appends them to a bank of examples; how many.

    Raises DataError for a draft whose calls cannot be parsed.
    """
    file = Path(drafts)
    _, parse = calls_parser(session or Session())
    groups = []
    for line in filled(file):
        tree = line.object()
        if tree.get("use") is not True:
            continue
        program = parse(str(tree.get("calls", "")))
        if bad := [x for x in program.lines if isinstance(x, Bad)]:
            raise line.error(f"calls that are a program ({bad[0].why})", tree.get("calls"))
        try:
            groups.append(example(str(tree["query"]), program, domain, str(tree.get("rule", "value"))))
        except (KeyError, ValueError) as e:
            raise DataError(f"{file}:{line.number}: {e}") from e
    if not groups:
        raise DataError(f'{file}: expected lines marked "use": true, found none')
    _append(Path(into), groups)
    return len(groups)


def _append(path: Path, groups: Sequence[ExampleGroup]) -> None:
    """Adds to a bank's file, whose comments and order stay."""
    plain = [
        {"domain": g.domain, "calls": g.calls, "rule": g.rule, "questions": list(g.questions)} for g in groups
    ]
    more = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=200)
    before = path.read_text(encoding="utf-8") if path.is_file() else "examples:\n"
    lines = "".join(f"  {x}\n" for x in more.splitlines())
    path.write_text(before.rstrip("\n") + "\n" + lines, encoding="utf-8")
