"""Data made with a model: test questions from your own documents, and pools of examples for prompts.

To make test questions, the model writes questions about passages drawn from the documents. Rules and a second
request check each question. For a pool, the model may explain the answer of each example.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from raypipe import readers
from raypipe.api.data import ingest
from raypipe.api.paths import Data, format_for, inputs
from raypipe.api.results import Result, outside_loop
from raypipe.api.served_models import generator_of, replies, require_answering
from raypipe.api.session import Place, Session, endpoint_addresses
from raypipe.core.backoff import retrying
from raypipe.core.errors import ConfError, DataError, Unavailable
from raypipe.core.llm import Generated, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import ANSWERED, Fault, Gold, Question
from raypipe.core.textfile import require_file, write_json_lines
from raypipe.evaluation import make_questions as making
from raypipe.evaluation.make_questions import Candidate, Draw, MadeQuestion, MadeSet, draw
from raypipe.models.entry import LLM
from raypipe.models.kit import LocalKit
from raypipe.readers.example_pool import ExampleRow, write_pool
from raypipe.readers.field_map import Fields
from raypipe.readers.formats import Format
from raypipe.recipes.resolve import prompt_file
from raypipe.runs.pipeline.ingest_log import driving
from raypipe.runs.pipeline.tasks import TRIES
from raypipe.store import Store
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions, merge_memo
from raypipe.store.memo.lookup import lookup
from raypipe.store.memo.memo import replies_of, reply_keys
from raypipe.text.replies import UnreadableReply, read_plain
from raypipe.text.sanitize import escape_markup
from raypipe.text.thoughts import answer_of
from raypipe.text.words import require_splitter

SHOWN = 5  # questions that a result shows


@dataclass(frozen=True, slots=True)
class QuestionsPlan:
    """Calls that making questions may take, computed before the first call."""

    store: str  # URI
    model: str  # name of the model on its server or hub; "": the model is a folder
    documents: int  # documents that passages were drawn from
    unreadable: int  # documents without a text, or without a passage of prose
    wanted: int  # questions to make
    candidates: int  # questions that may be written
    max_calls: int
    cached: int  # calls to write questions whose replies are cached


@dataclass(frozen=True, slots=True, repr=False)
class MadeQuestionsResult(Result):
    """Questions that were made. Each question that passed all checks is a row."""

    plan: QuestionsPlan
    out: Path | None  # the file of questions; None: a dry run
    kept: tuple[MadeQuestion, ...] = ()
    written: int = 0  # candidates that the model wrote
    rejected: Mapping[str, int] = field(default_factory=dict)  # reason -> candidates
    computed: int = 0  # calls to the model
    cached: int = 0  # calls answered from the cache

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"id": q.id, "kind": q.kind, "question": q.text.question, "answer": q.text.answers[0]}
            for q in self.kept
        ]

    @property
    def kinds(self) -> dict[str, int]:
        """Number of questions of each kind."""
        return dict(sorted(Counter(q.kind for q in self.kept).items()))

    def first(self) -> list[dict[str, Any]]:
        """Returns the first lines of the file, as examples to show."""
        return [line_of(q, self.plan.model) for q in self.kept[:SHOWN]]

    def record(self) -> Mapping[str, Any]:
        made = {"plan": self.plan, "out": self.out, "questions": len(self.kept), "kinds": self.kinds}
        counts = ("written", "rejected", "computed", "cached")
        return {**made, **{name: getattr(self, name) for name in counts}, "first": self.first()}


@outside_loop
def make_questions(
    out: str | Path,
    documents: Data = (),
    number: int = 200,
    store: Place = None,
    seed: int = 1,
    format: Format | None = None,
    fields: Fields | None = None,
    dry_run: bool = False,
    on_plan: Callable[[QuestionsPlan], None] = lambda plan: None,
    session: Session | None = None,
) -> MadeQuestionsResult:
    """Makes at most `number` test questions, and writes them to a file that `ingest` reads.

    `documents` are first read into the store. Passages are then drawn by `seed` from all documents of the
    store. The session's `llm` writes and checks the questions. `on_plan` receives the plan before the first
    call. `dry_run` ends there and stores nothing; with `documents` it plans for these only, as if no reply
    were cached. Raises ConfError without an `llm`, Unavailable if the model does not answer, and DataError if
    no question can be made or used."""
    session = session or Session()
    if session.llm is None:
        raise ConfError("--llm: expected an entry, a folder or URL#MODEL of a server; found none")
    model = generator_of(session, "--llm", session.llm, LLM)
    endpoints = endpoint_addresses(session.cluster_file(), [model], session.settings.keys)
    prompts = {n: prompt_file(session.settings.conf, f"questions/{n}") for n in making.PROMPTS}
    require_file(out, "--out")
    require_splitter()
    of = model, number, seed, prompts, session.address(store, bool(documents)), on_plan
    with tempfile.TemporaryDirectory(prefix="raypipe-plan-") as scratch:
        filled = session.store_to_fill(scratch if dry_run else store) if documents else session.store(store)
        if documents:
            ingest(documents, filled, format, session, fields)
        if dry_run:
            return MadeQuestionsResult(_plan(filled, *of)[0], None)
    with driving(filled, f"questions {out}"):
        merge_memo(filled)  # replies that a killed run had cached
        plan, drawn, planned = _plan(filled, *of)
        asks = [(model, sampling, None) for sampling in (making.WRITE, making.CHECK)]
        require_answering(asks, endpoints, session.settings)
        tally = CallCounts()
        with session.shown() as progress:
            task = progress.task("made", "questions", number)

            async def make() -> MadeSet:
                async with LocalKit(None, endpoints=endpoints) as own:
                    kit = cached(own, StoreMemo(filled.uri, memo_versions(filled)), tally)
                    generate = retrying(kit.generator(model), TRIES)
                    reach = lambda made: task.reach(len(made.kept))  # noqa: E731
                    return await making.make(planned, drawn, number, generate, prompts, reach)

            made = asyncio.run(make())
            merge_memo(filled)
    if not made.kept:
        why = ", ".join(f"{reason} {n}" for reason, n in made.rejected.most_common())
        raise DataError(f"{session.llm}: none of {made.written} questions can be used: {why}")
    write_json_lines(Path(out), (line_of(q, model.repo or model.name) for q in made.kept))
    kept, rejected, calls = tuple(made.kept), dict(made.rejected), tally.replies
    return MadeQuestionsResult(plan, Path(out), kept, made.written, rejected, calls.computed, calls.cached)


def line_of(made: MadeQuestion, model: str) -> dict[str, Any]:
    """Builds a question's line for the file. A person may fill in its empty `review`."""
    evidence = []
    for n, (start, end) in made.text.quotes:
        p = made.passages[n]
        named = {"document": p.document, "title": p.title, "source": p.source}
        span = {"start": p.span[0] + start, "end": p.span[0] + end}
        evidence.append({**named, **span, "quote": p.text[start:end]})
    return {
        "id": made.id,
        "question": made.text.question,
        "answers": list(made.text.answers),
        "question_type": made.kind,
        "evidence": evidence,
        "made_by": model,
        "review": "",
    }


def _plan(
    store: Store,
    model: Model,
    number: int,
    seed: int,
    prompts: Mapping[str, Any],
    uri: str,
    on_plan: Callable[[QuestionsPlan], None],
) -> tuple[QuestionsPlan, Draw, Sequence[Candidate]]:
    """Plans `number` questions. Returns the plan, the drawn passages, and the candidates (questions that may
    be written). `uri` is the store's address in the plan. `on_plan` receives the plan. Raises DataError if no
    document has prose."""
    drawn = draw(store, seed)
    planned = making.candidates(drawn, number)
    if not planned:
        none = f"expected passages of prose, found none in {drawn.unreadable} documents"
        raise DataError(f"{uri}: {none}. `raypipe ingest PATH` reads some into a store")
    keys = reply_keys(model, making.written_chats(planned, prompts), making.WRITE, None)
    plan = QuestionsPlan(
        uri,
        model.repo,
        drawn.documents,
        drawn.unreadable,
        number,
        len(planned),
        sum(making.CALLS[c.kind] for c in planned),
        len(lookup(store, replies_of(model), keys)),
    )
    on_plan(plan)
    return plan, drawn, planned


PROMPT: Final = "qasper/explain"
EXPLANATION_TOKENS: Final = 100  # length of one explanation, at most, in the model's tokens: a sentence


@dataclass(frozen=True, slots=True, repr=False)
class ExamplePoolResult(Result):
    """Counts of a pool of examples. Each count is a row."""

    out: Path  # file of the pool
    examples: int  # questions with an answer
    unanswered: int  # questions without an answer, which are left out
    explained: int  # examples with an explanation
    unexplained: int  # examples without an explanation, although requested

    @property
    def title(self) -> str:
        said = f", {self.explained} with an explanation" if self.explained or self.unexplained else ""
        said += f", {self.unexplained} without one" if self.unexplained else ""
        return f"{self.out}: {self.examples} examples{said}; {self.unanswered} questions have no answer"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        names = ("examples", "unanswered", "explained", "unexplained")
        return [{"what": what, "count": getattr(self, what)} for what in names]


@outside_loop
def build_examples(
    data: Data,
    out: str | Path,
    explain: str | None = None,
    format: Format | None = None,
    session: Session | None = None,
    fields: Fields | None = None,
) -> ExamplePoolResult:
    """Writes a pool of examples, from which a recipe's step `examples` takes some into its prompts.

    An example has a question of `data`, its first answer and its document. Questions without an answer are
    left out. `explain` is a generator of the models file. It explains each answer in a sentence, from the
    evidence of the first annotator if the data have it; None: no explanations. An unreadable explanation is
    dropped. Raises ConfError for an unknown generator, Unavailable for a transient fault, and DataError if no
    question has an answer or all calls failed.
    """
    session = session or Session()
    require_file(out, "--out")
    paths = inputs(data, session.settings)
    rows = list(readers.open(paths, format_for(format, paths, fields), readers.ReadCounts()))
    pairs = [(r.question, r.gold) for r in rows if r.question and r.gold and r.gold.answers]
    asked = sum(r.question is not None for r in rows)
    if not pairs:
        raise DataError(f"{', '.join(map(str, paths))}: none of {asked} questions has an answer to show")
    examples = [ExampleRow(q.text, g.answers[0], q.citations[0].url if q.citations else "") for q, g in pairs]
    if explain is not None:
        explanations = asyncio.run(_explained(session, explain, pairs))
        examples = [replace(e, explanation=text) for e, text in zip(examples, explanations, strict=True)]
    write_pool(Path(out), examples)
    explained = sum(bool(e.explanation) for e in examples)
    lacking = len(examples) - explained if explain is not None else 0
    return ExamplePoolResult(Path(out), len(examples), asked - len(pairs), explained, lacking)


async def _explained(session: Session, name: str, pairs: Sequence[tuple[Question, Gold]]) -> list[str]:
    """Requests an explanation of each answer from a model. Returns the texts; "" for an unusable reply."""
    model = session.catalog().model(name)
    render = prompt_file(session.settings.conf, PROMPT).renderer()
    chats = []
    for q, g in pairs:
        evidence = "\n".join(g.annotators[0].evidence) if g.annotators else ""
        shown = {"text": q.text, "answer": g.answers[0], "evidence": evidence}
        chats.append(render({name: escape_markup(text) for name, text in shown.items()}))
    sampling = Sampling(max_tokens=EXPLANATION_TOKENS + model.thought_tokens)
    return _explanations(await replies(session, model, chats, sampling), name)


def _explanations(said: Sequence[Generated | Fault], name: str) -> list[str]:
    """Returns each reply's explanation, or "". Raises Unavailable for a transient fault, DataError if all
    failed."""
    faults = [s for s in said if isinstance(s, Fault)]
    wanted = f"expected {len(said)} explanations"
    if down := next((f for f in faults if f.transient), None):
        why = f"found {down.reason}: {down.detail}. No pool was written: try again when the model answers"
        raise Unavailable(f"--explain {name}: {wanted}, {why}")
    if len(faults) == len(said):
        why = f"found none, first {faults[0].reason}: {faults[0].detail}"
        raise DataError(f"--explain {name}: {wanted}, {why}. No pool was written: use another model")
    out = []
    for reply in said:
        text = ""
        with suppress(UnreadableReply):
            found = read_plain(answer_of(reply.text)) if isinstance(reply, Generated) else None
            text = " ".join(found.text.split()) if found and found.label == ANSWERED else ""
        out.append(text)
    return out
