"""Test questions from documents of one's own: drawn passages, a model that writes, rules and a second ask."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raypipe.api.data import ingest
from raypipe.api.paths import Data, Fields, require_file
from raypipe.api.results import Result, as_json, outside_loop
from raypipe.api.served import ServedModel, require_answering
from raypipe.api.session import Place, Session, endpoint_addresses
from raypipe.core.errors import ConfError, DataError
from raypipe.core.protocols import Kit, Model
from raypipe.evaluation import make_questions as making
from raypipe.evaluation.drawn_passages import Draw, draw
from raypipe.evaluation.make_questions import Candidate, MadeQuestion, MadeSet
from raypipe.memo.counts import CallCounts
from raypipe.memo.disk import StoreMemo, memo_versions, merge_memo
from raypipe.memo.keys import reply_keys
from raypipe.memo.lookup import lookup
from raypipe.memo.memo import cached, replies_of
from raypipe.metrics.textfile import replaced
from raypipe.models.entry import LLM
from raypipe.models.kit import LocalKit
from raypipe.models.load import EndpointAddress
from raypipe.pipeline.ingest_log import driving
from raypipe.readers import Format
from raypipe.recipes.resolve import prompt_file
from raypipe.store import Store
from raypipe.text.sentences import require_splitter

SHOWN = 5  # questions that a result shows


@dataclass(frozen=True, slots=True)
class QuestionsPlan:
    """What making questions may ask of a model, known before the first call."""

    store: str  # URI
    model: str  # as the server calls it
    documents: int  # that passages were drawn from
    unreadable: int  # documents without a text, or without a passage of prose
    wanted: int  # questions
    candidates: int  # that may be written
    max_calls: int
    cached: int  # of the calls that write a question


@dataclass(frozen=True, slots=True)
class MadeQuestionsResult(Result):
    """Questions that were made; its rows are those that were kept."""

    SCHEMA = "id kind question answer"
    plan: QuestionsPlan
    out: Path | None  # the file of questions; None: a dry run
    kept: tuple[MadeQuestion, ...] = ()
    written: int = 0  # candidates
    rejected: Mapping[str, int] = field(default_factory=dict)  # reason -> candidates
    computed: int = 0  # calls
    cached: int = 0

    @property
    def title(self) -> str:
        return f"{self.out}: {len(self.kept)} questions of {self.plan.wanted} wanted"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for q in self.kept:
            yield {"id": q.id, "kind": q.kind, "question": q.text.question, "answer": q.text.answers[0]}

    def to_json(self) -> dict[str, Any]:
        return as_json(
            plan=self.plan, out=self.out, questions=len(self.kept),
            kinds=dict(sorted(Counter(q.kind for q in self.kept).items())), written=self.written,
            rejected=self.rejected, computed=self.computed, cached=self.cached,
            first=[line_of(q, self.plan.model) for q in self.kept[:SHOWN]],
        )  # fmt: skip


@outside_loop
def make_questions(
    out: str | Path, documents: Data = (), number: int = 200, store: Place = None, seed: int = 1,
    format: Format | None = None, fields: Fields | None = None, dry_run: bool = False,
    on_plan: Callable[[QuestionsPlan], None] = lambda plan: None, session: Session | None = None,
) -> MadeQuestionsResult:  # fmt: skip
    """Makes test questions from documents, and writes them to a file that `ingest` reads.

    `documents` are read into the store first; none: those that it holds. The session's `llm` writes and
    checks; its replies are cached, so the same call again asks for nothing. Another `seed` draws other
    passages. `on_plan` gets the number of calls before the first; `dry_run` ends there. Raises ConfError,
    DataError where there is no prose to ask about or no question can be used, and Unavailable.
    """
    session = session or Session()
    if session.llm is None:
        raise ConfError("--llm: expected URL#MODEL, such as http://127.0.0.1:8000/v1#MODEL; found none")
    model = session.catalog().served(LLM, ServedModel.parse(session.llm, "--llm").model)
    endpoints = endpoint_addresses(session.cluster_file(), [model], session.settings.keys)
    prompts = {n: prompt_file(session.settings.conf, f"questions/{n}") for n in making.PROMPTS}
    require_file(out, "--out")
    require_splitter()
    filled = session.store_to_fill(store) if documents else session.store(store)
    if documents:
        ingest(documents, filled, format, session, fields)
    with driving(filled, f"questions {out}"):
        drawn = draw(filled, seed)
        planned = making.candidates(drawn, number)
        if not planned:
            raise DataError(
                f"{filled.uri}: expected documents with passages of prose, found none in {drawn.unreadable} "
                "documents. `raypipe ingest PATH` reads some into a store"
            )
        plan = _plan(filled, model, drawn, planned, number, prompts)
        on_plan(plan)
        if dry_run:
            return MadeQuestionsResult(plan, None)
        require_answering([model], endpoints)
        tally = CallCounts()
        with session.shown() as progress:
            task = progress.task("made", "questions", number)

            async def make() -> MadeSet:
                show = lambda m: task.advance(len(m.kept) - task.done)  # noqa: E731
                async with _caching(filled, endpoints, tally) as kit:
                    generate = kit.generator(model)
                    return await making.make(planned, drawn, number, generate, prompts, show)

            merge_memo(filled)
            made = asyncio.run(make())
            merge_memo(filled)
    if not made.kept:
        why = ", ".join(f"{reason} {n}" for reason, n in made.rejected.most_common())
        raise DataError(f"{session.llm}: none of {made.written} questions can be used: {why}")
    _write(Path(out), made.kept, model.repo)
    calls = tally.replies
    return MadeQuestionsResult(
        plan, Path(out), tuple(made.kept), made.written, dict(made.rejected), calls.computed, calls.cached
    )


@asynccontextmanager
async def _caching(
    store: Store, endpoints: Mapping[str, EndpointAddress], tally: CallCounts
) -> AsyncIterator[Kit]:
    """A kit of this process whose replies the store caches."""
    kit = LocalKit(None, engines={}, endpoints=endpoints)
    try:
        yield cached(kit, StoreMemo(store.uri, memo_versions(store)), tally)
    finally:
        await kit.close()


def line_of(made: MadeQuestion, model: str) -> dict[str, Any]:
    """A line of the file of questions, with an empty `review`."""
    quotes = [(made.passages[n], start, end) for n, (start, end) in made.text.quotes]
    evidence = [
        {
            "document": p.document, "title": p.title, "source": p.source, "start": p.span[0] + start,
            "end": p.span[0] + end, "quote": p.text[start:end],
        }
        for p, start, end in quotes
    ]  # fmt: skip
    return {
        "id": made.id, "question": made.text.question, "answers": list(made.text.answers),
        "question_type": made.kind, "evidence": evidence, "made_by": model, "review": "",
    }  # fmt: skip


def _plan(
    store: Store, model: Model, drawn: Draw, planned: Sequence[Candidate], number: int,
    prompts: Mapping[str, Any],
) -> QuestionsPlan:  # fmt: skip
    keys = reply_keys(model, making.written_chats(planned, prompts), making.WRITE, None)
    known = len(lookup(store, replies_of(model), keys))
    return QuestionsPlan(
        store.uri, model.repo, drawn.documents, drawn.unreadable, number, len(planned),
        sum(making.CALLS[c.kind] for c in planned), known,
    )  # fmt: skip


def _write(out: Path, made: Sequence[MadeQuestion], model: str) -> None:
    with replaced(out) as text:
        for q in made:
            text.write(json.dumps(line_of(q, model), ensure_ascii=False) + "\n")
