"""`raypipe kg examples`: better examples of calls, round by round, as db3 chose its own.

A model drafts the calls of some questions; what fails is shown; a person corrects the lines worth keeping and
marks them; import checks them and adds them to a bank, which the next round's prompt is made of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from rich.console import Console
from rich.markup import escape

from raypipe import readers
from raypipe.cli import options
from raypipe.cli.opened import catalog_of
from raypipe.cli.settings import Settings
from raypipe.core.errors import ConfError, DataError
from raypipe.core.llm import Generated, Grammar, Sampling
from raypipe.core.records import Fault, Question
from raypipe.kg.execute import run
from raypipe.kg.graph import open_folder
from raypipe.kg.language.example_bank import Domain, Group
from raypipe.kg.language.parser import Parse, parser
from raypipe.kg.language.program import Bad
from raypipe.kg.language.templatize import example
from raypipe.kg.language.time_words import moment
from raypipe.models.kit import LocalKit
from raypipe.recipes.resolve import prompt_file

MAX_TOKENS = 300  # of a program


def add(kinds: options.Commands) -> None:
    """Declares `kg examples draft` and `kg examples import`."""
    top = kinds.add_parser("examples", help="draft calls with a model, and import corrected ones as examples")
    whats = top.add_subparsers(dest="what", metavar="WHAT", required=True)
    made = options.command(
        whats,
        "draft",
        "let a model write the calls of some questions, run them, and show what failed",
        "raypipe kg examples draft --data dev.jsonl --model llama-3-8b --prompt db3/calls-movie "
        "--graph kg --out drafts.jsonl",
        _draft,
    )
    made.add_argument("--data", metavar="PATH", type=Path, nargs="+", required=True, help="questions")
    options.format_of(made)
    made.add_argument("--model", required=True, help="a generator of the models file")
    made.add_argument("--models", metavar="FILE", help="models file in place of conf/models.yaml")
    made.add_argument("--prompt", default="db3/calls-open", help="under conf/prompts (db3/calls-open)")
    made.add_argument("--graph", metavar="DIR", type=Path, required=True, help="a folder of tables")
    made.add_argument("--number", metavar="N", type=options.at_least(1), default=100, help="questions (100)")
    made.add_argument("--out", metavar="FILE", type=Path, required=True, help="drafts, JSON lines")
    made = options.command(
        whats,
        "import",
        'check the drafts that are marked "use": true and add them to a bank of examples',
        "raypipe kg examples import drafts.jsonl --domain movie --into conf/examples/mine.yaml",
        _import,
    )
    made.add_argument("drafts", metavar="FILE", type=Path)
    made.add_argument("--domain", choices=get_args(Domain), required=True)
    made.add_argument("--into", metavar="FILE", type=Path, required=True, help="a bank, old or to be made")


def _parser(settings: Settings) -> tuple[Grammar, Parse]:
    text = settings.conf.find("grammar", "calls", ".lark").read_text(encoding="utf-8")
    return Grammar(text), parser(text)


def _draft(args: argparse.Namespace, settings: Settings) -> int:
    grammar, parse = _parser(settings)
    format = options.format_for(args.format, args.data)
    rows = readers.open(args.data, format, readers.Counts())
    questions = [r.question for r in rows if r.question is not None][: args.number]
    said = asyncio.run(_said(args, settings, questions, grammar))
    graph = open_folder(args.graph)
    drafts = []
    for q, reply in zip(questions, said, strict=True):
        calls = reply.text if isinstance(reply, Generated) else ""
        results = asyncio.run(run(parse(calls), graph, moment(q.asked_at)))
        why = [r.fault.detail for r in results if r.fault]
        why += [f"unknown: {name}" for r in results for name in r.unknown]
        if isinstance(reply, Fault):
            why.append(reply.detail)
        values = list(results[-1].values[:5]) if results else []
        drafts.append(_line(q, calls, values, why))
    args.out.write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in drafts), encoding="utf-8")
    failed = [d for d in drafts if d["failed"]]
    console = Console()
    for d in failed:
        shown = f"{d['query']}\n  {d['calls']}\n  {d['failed']}"
        console.print(escape(shown), highlight=False)
    console.print(
        f"{len(drafts)} drafts in {args.out}, {len(failed)} failed. Correct those worth keeping, "
        f'mark them "use": true, and import them.',
        highlight=False,
    )
    return 0


async def _said(
    args: argparse.Namespace, settings: Settings, questions: Sequence[Question], grammar: Grammar
) -> list[Generated | Fault]:
    prompt = prompt_file(settings.conf, args.prompt)
    if strange := set(prompt.variables) - {"text", "asked_at"}:
        raise ConfError(f"--prompt {args.prompt}: expected one of text and asked_at, found {min(strange)}")
    render = prompt.renderer()
    kit = LocalKit(None, engines=None)
    generate = kit.generator(catalog_of(args.models, settings.conf).model(args.model))
    chats = [render({"text": q.text, "asked_at": q.asked_at}) for q in questions]
    try:
        return await generate(chats, Sampling(max_tokens=MAX_TOKENS, constraint=grammar))
    finally:
        await kit.close()


def _line(question: Question, calls: str, values: list[Any], why: list[str]) -> dict[str, Any]:
    failed = "; ".join(why) or ("" if values or calls.strip() == "None" else "it gave nothing")
    return {
        "query": question.text, "query_time": question.asked_at, "calls": calls, "values": values,
        "failed": failed, "rule": "value", "use": False,
    }  # fmt: skip


def _import(args: argparse.Namespace, settings: Settings) -> int:
    _, parse = _parser(settings)
    groups = []
    for n, text in enumerate(_lines(args.drafts), 1):
        tree = _object(args.drafts, n, text)
        if tree.get("use") is not True:
            continue
        program = parse(str(tree.get("calls", "")))
        if bad := [line for line in program.lines if isinstance(line, Bad)]:
            raise DataError(f"{args.drafts}: line {n}: the calls are no program: {bad[0].why}")
        try:
            groups.append(example(str(tree["query"]), program, args.domain, str(tree.get("rule", "value"))))
        except (KeyError, ValueError) as e:
            raise DataError(f"{args.drafts}: line {n}: {e}") from e
    if not groups:
        raise DataError(f'{args.drafts}: expected lines marked "use": true, found none')
    _append(args.into, groups)
    print(f"{args.into}: {len(groups)} examples added")
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return [x for x in path.read_text(encoding="utf-8").splitlines() if x.strip()]
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot be read: {e}") from e


def _object(path: Path, n: int, text: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(text)
    except ValueError as e:
        raise DataError(f"{path}: line {n}: expected JSON: {e}") from e
    if not isinstance(tree, dict):
        raise DataError(f"{path}: line {n}: expected an object, found {text[:60]!r}")
    return tree


def _append(path: Path, groups: Sequence[Group]) -> None:
    """Adds to a bank's file, whose comments and order stay."""
    plain = [
        {"domain": g.domain, "calls": g.calls, "rule": g.rule, "questions": list(g.questions)} for g in groups
    ]
    more = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=200)
    before = path.read_text(encoding="utf-8") if path.is_file() else "examples:\n"
    lines = "".join(f"  {x}\n" for x in more.splitlines())
    path.write_text(before.rstrip("\n") + "\n" + lines, encoding="utf-8")
