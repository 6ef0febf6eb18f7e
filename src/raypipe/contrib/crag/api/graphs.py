"""Knowledge graphs: run calls over one, build one from tables, serve a folder of tables, convert public data.

Examples of calls are made as db3 chose its own: a model drafts calls, a person corrects and marks the good
drafts, and the import appends these to the bank that prompts show.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import to_jsonable_python

from raypipe import readers
from raypipe.api.paths import format_for
from raypipe.api.results import Result, outside_loop
from raypipe.api.served_models import replies
from raypipe.api.session import Session
from raypipe.contrib.crag import build, public_data
from raypipe.contrib.crag.client import ServerConnection
from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.graph import GraphBackend, ServerBackend, open_folder
from raypipe.contrib.crag.language.example_bank import Domain, example
from raypipe.contrib.crag.language.parser import Parse, parser
from raypipe.contrib.crag.language.program import Bad
from raypipe.contrib.crag.records import CallResult
from raypipe.contrib.crag.tables import load
from raypipe.core.errors import ConfError, DataError
from raypipe.core.llm import Generated, Grammar, Sampling
from raypipe.core.records import Fault, Question
from raypipe.core.textfile import filled
from raypipe.readers.field_map import Fields
from raypipe.readers.formats import Format
from raypipe.recipes.resolve import prompt_file
from raypipe.text.moments import moment
from raypipe.text.thoughts import split_thoughts


@dataclass(frozen=True, slots=True, repr=False)
class CallsResult(Result):
    """Results of calls over a graph, one row for each line."""

    results: tuple[CallResult, ...]

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "call": r.call,
                "values": ", ".join(map(str, r.values)),
                "rows": len(r.rows),
                "requests": len(r.requests),
                "ms": r.ms,
                "fault": None if r.fault is None else f"{r.fault.reason}: {r.fault.detail}",
            }
            for r in self.results
        ]

    def record(self) -> Mapping[str, Any]:
        return {"results": [_line(r) for r in self.results]}


def _line(result: CallResult) -> dict[str, Any]:
    names = ("call", "rows", "values", "sentences", "requests", "fault")
    line = {name: to_jsonable_python(getattr(result, name)) for name in names}
    if line["fault"] is not None:
        del line["fault"]["step"]  # no recipe, so the step's name means nothing
    return {**line, "ms": round(result.ms, 3)}


@outside_loop
def run_calls(program: str, graph: str, asked_at: str, session: Session | None = None) -> CallsResult:
    """Runs lines of calls over a graph, which is the mock API's address or a folder of tables.

    `asked_at` is the time of the question, as `03/05/2024, 23:18:31 PT`. A failed call has a fault. Raises
    ConfError for an invalid address or an empty program, and DataError for an unreadable time or table.
    """
    if not program.strip():
        raise ConfError("expected lines of calls, such as get_movie(amelie)[year], found none")
    _, parse = calls_parser(session or Session())

    async def results() -> list[CallResult]:
        async with open_backend(graph) as backend:
            return await run(parse(program), backend, moment(asked_at))

    return CallsResult(tuple(asyncio.run(results())))


def calls_parser(session: Session) -> tuple[Grammar, Parse]:
    """Returns the grammar that constrains models which write calls, and a parser of calls."""
    text = session.settings.conf.find("grammar", "calls", ".lark").read_text(encoding="utf-8")
    return Grammar(text), parser(text)


@asynccontextmanager
async def open_backend(graph: str) -> AsyncIterator[GraphBackend]:
    """Opens the graph at the mock API's address or in a folder. Raises ConfError for another address."""
    if "://" not in graph:
        yield open_folder(Path(graph))
    elif graph.startswith(("http://", "https://")):
        async with aclosing(ServerConnection(graph)) as server:
            yield ServerBackend(server.ask)
    else:
        raise ConfError(f"--graph {graph}: expected http://HOST:PORT or a folder of tables")


@contextmanager
def serve_graph(graph: str | Path, port: int = 0) -> Iterator[str]:
    """Serves a folder of tables with the mock API's endpoints during the block; yields the address.

    For tests and demonstrations, on this machine only. Port 0 takes a free port. Raises ConfError if the port
    is invalid or taken, and DataError if the tables cannot be read.
    """
    if not 0 <= port < 65536:
        raise ConfError(f"--port {port}: expected 0 to 65535")
    from raypipe.contrib.crag.server import serve  # the web framework takes half a second to import

    with ExitStack() as stack:
        tables = load(Path(graph))
        try:
            url = stack.enter_context(serve(tables, port=port))
        except OSError as e:
            raise ConfError(f"--port {port}: {e}. Choose another, or 0 for a free one.") from e
        yield url


@dataclass(frozen=True, slots=True, repr=False)
class GraphResult(Result):
    """Tables of a built graph, one row for each."""

    out: Path  # its folder
    version: str  # digest of its files
    tables: tuple[build.BuiltTable, ...]

    @property
    def title(self) -> str:
        rows = sum(t.rows for t in self.tables)
        return f"{self.out}: {rows} rows of {sum(t.lines for t in self.tables)} lines, {self.version}"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [{**asdict(t), "keys": ", ".join(t.keys)} for t in self.tables]


def build_graph(plan: str | Path, out: str | Path) -> GraphResult:
    """Builds the folder of a graph from CSV files. `plan` is a YAML file: table -> files -> columns.

    Raises ConfError if the plan is wrong. Raises DataError if a cell cannot be read, with its file, line and
    column, and if the folder `out` is not empty.
    """
    version, tables = build.build(Path(plan), Path(out))
    return GraphResult(Path(out), version, tuple(tables))


@dataclass(frozen=True, slots=True, repr=False)
class FactsResult(Result):
    """Counts of a table of facts, one row each: facts, lines of the file, skipped lines."""

    out: Path  # the table
    summary: public_data.BuildSummary

    @property
    def title(self) -> str:
        s = self.summary
        return f"{self.out}: {s.facts} facts of {s.lines} lines, {s.skipped} skipped"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [{"what": what, "count": count} for what, count in asdict(self.summary).items()]


def build_facts(
    source: str | Path,
    kind: public_data.Kind,
    out: str | Path,
    credits: str | Path | None = None,
    sentences: public_data.Form = "prose",
) -> FactsResult:
    """Converts a published CSV file to a table of facts: sentences by year or name.

    `kind` names the source, which sets the columns. `credits` is MovieLens' file of casts and crews.
    `sentences`: see `public_data.Form`. Raises DataError if the file lacks an expected column, and ConfError
    if `credits` comes with another kind.
    """
    people = Path(credits) if credits else None
    return FactsResult(Path(out), public_data.build(Path(source), kind, Path(out), people, sentences))


MAX_TOKENS = 300  # of a drafted program


@outside_loop
def draft_examples(
    data: Sequence[str | Path],
    graph: str | Path,
    model: str,
    prompt: str = "db3/calls-open",
    number: int = 100,
    format: Format | None = None,
    session: Session | None = None,
    fields: Fields | None = None,
) -> list[dict[str, Any]]:
    """Drafts examples: a model writes the calls of `number` questions, and the calls are run over a graph.

    Each draft has the calls, their values and the reasons of failures. `graph` is a folder of tables,
    `prompt` a name under conf/prompts, `fields` as in `ingest`. Raises ConfError for an unfit prompt or
    model, and DataError if a file cannot be read.
    """
    session = session or Session()
    paths = [Path(p) for p in data]
    grammar, parse = calls_parser(session)
    rows = readers.open(paths, format_for(format, paths, fields), readers.ReadCounts())
    questions = [r.question for r in rows if r.question is not None][:number]
    written = asyncio.run(_model_replies(session, model, prompt, questions, grammar))
    opened = open_folder(Path(graph))
    drafts = []
    for q, reply in zip(questions, written, strict=True):
        calls = split_thoughts(reply.text).answer if isinstance(reply, Generated) else ""
        results = asyncio.run(run(parse(calls), opened, moment(q.asked_at)))
        why = [r.fault.detail for r in results if r.fault]
        why += [f"unknown: {name}" for r in results for name in r.unknown]
        if isinstance(reply, Fault):
            why.append(reply.detail)
        values = list(results[-1].values[:5]) if results else []
        failed = "; ".join(why) or ("" if values or calls.strip() == "None" else "it gave nothing")
        drafts.append(
            {
                "query": q.text,
                "query_time": q.asked_at,
                "calls": calls,
                "values": values,
                "failed": failed,
                "rule": "value",
                "use": False,
            }
        )
    return drafts


async def _model_replies(
    session: Session, model: str, name: str, questions: Sequence[Question], grammar: Grammar
) -> list[Generated | Fault]:
    prompt = prompt_file(session.settings.conf, name)
    if strange := set(prompt.variables) - {"text", "asked_at"}:
        raise ConfError(f"--prompt {name}: expected one of text and asked_at, found {min(strange)}")
    render = prompt.renderer()
    chats = [render({"text": q.text, "asked_at": q.asked_at}) for q in questions]
    sampling = Sampling(max_tokens=MAX_TOKENS, constraint=grammar)
    return await replies(session, session.catalog().model(model), chats, sampling)


def import_examples(
    drafts: str | Path, domain: Domain, into: str | Path, session: Session | None = None
) -> int:
    """Appends the drafts marked "use": true to a bank of examples; returns their number.

    Raises DataError if no draft is marked, and if a marked draft's calls cannot be parsed.
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
    path = Path(into)
    plain = [
        {"domain": g.domain, "calls": g.calls, "rule": g.rule, "questions": list(g.questions)} for g in groups
    ]
    more = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=200)
    before = path.read_text(encoding="utf-8") if path.is_file() else "examples:\n"
    path.write_text(before.rstrip("\n") + "\n" + textwrap.indent(more, "  "), encoding="utf-8")
    return len(groups)
