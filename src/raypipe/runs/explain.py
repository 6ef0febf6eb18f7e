"""Explanation of one row, that is one question, of a finished run: its key, evidence, requests and reasons.

The question passes the question steps once more, stage by stage. Values come only from the memo (the cache of
model calls). This shows which requests the stages make, and sends none. Reads records, store and memo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from raypipe.core import arrow
from raypipe.core.errors import DataError
from raypipe.core.llm import Message
from raypipe.core.protocols import Step
from raypipe.core.records import TRACE, Fault, Question, Span, chunk_id, faults_of, quotes_of, urls
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor, StageError
from raypipe.recipes.recipe import Recipe, Stage, faults_at, row_key
from raypipe.recipes.serialize import description
from raypipe.recipes.step_contract import asked_models, requested_by
from raypipe.runs.pipeline.dead_letters import final_last
from raypipe.runs.pipeline.recipe_tables import lacking, searched_at
from raypipe.runs.record import AnswerKey, Run, answer_keys, find, reason
from raypipe.runs.stage_records import Difference, differences, with_lines
from raypipe.store import Store, StoreError
from raypipe.store.ids import Ids, stand_in
from raypipe.store.index import LanceIndex
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions
from raypipe.store.memo.lookup import CacheOnlyKit, ChatRecorder, NotCached, RecordingMemo, lookup
from raypipe.store.sources import all_sources, by_source

LISTED = 10  # ids that a message lists, at most


@dataclass(frozen=True, slots=True)
class AnswerQuote:
    """A quote in a reply of the answer."""

    url: str | None  # address of the page or file; None: no citation and no folder has the source
    source: str  # source id
    span: Span  # place in the source's parsed text
    quote: str  # the text of that span


@dataclass(frozen=True, slots=True)
class StepReply:
    """The reply of one step."""

    label: str  # answered, abstained, fault, ... or a class
    text: str
    confidence: float | None  # 0..1; None: the step states none


@dataclass(frozen=True, slots=True)
class ModelChat:
    """A chat with a language model."""

    messages: tuple[Message, ...]
    reply: str | None  # the model's raw reply, or its fault; None: not in the memo


@dataclass(frozen=True, slots=True)
class StageRequests:
    """The requests of one stage to models for the explained row."""

    step: str
    reason: str  # model, prompt, parameter, version, upstream, row, evidence; "": reused answer
    requests: int | None  # distinct ones; None: not known, as when a needed value is not in the memo
    computed: int | None  # not cached before the run: it or a later run computed them; None: not known
    cached: int | None  # requests cached before the run; None: not known
    chats: tuple[ModelChat, ...] = ()  # chats with language models; the last chats may lack replies


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The origin of one question's answer: key, evidence, requests, and differences from an earlier run."""

    question: str
    run: str
    recipe: str  # digest
    row: str  # row key
    key: str  # key of the answer: digest of recipe, question, row key, and missing sources
    parts: Mapping[str, str]
    """The parts of the row key by name. A citation is its rank, url, date and sources. `absent` lists the
    missing sources, each with the tables that lacked it."""
    state: str
    """reused: answered before the run. computed: answered by the run. kept: answered by run `kept`. fault:
    failed. missing: neither an answer nor a fault is stored."""
    kept: str = ""  # earlier run whose answer was kept: fields except run and state are of it; "": none
    answer: str = ""
    outcome: str = ""
    expected: str = ""  # golds, with | between; "": none is known
    verdict: str = ""  # right, wrong, i don't know or not scored; "": the results were not read
    evidence: tuple[AnswerQuote, ...] = ()  # quotes of the answer, best first
    replies: Mapping[str, StepReply] = field(default_factory=dict)  # step name -> its reply
    faults: tuple[Fault, ...]  # faults of the question, even if another step answered it
    previous: str  # earlier run to compare with; "": none, or its record is missing
    changed: tuple[str, ...]  # names of the parts of the row key that differ from run `previous`
    differences: tuple[Difference, ...]  # differences of the recipe from that of run `previous`
    adopted: tuple[str, ...]  # a sentence for each model that counts as another one (`runs.adoption`)
    steps: tuple[StageRequests, ...]


def why(store: Store, record: Run, row: str) -> Explanation:
    """Explains the question with this id or unique beginning of an id. Raises DataError if no question of the
    run matches, if several do, or if the answer was kept from a run whose record is missing. Raises ConfError
    if this raypipe would compute the recipe differently."""
    keys = answer_keys(store, record.run)
    row = _id(record, keys, row)
    key, recipe = keys[row], description(record.recipe)
    if key.kept:
        if (earlier := find(store, key.kept)) is None:
            gone = f"the record of run {key.kept}, which answered it, is no longer in {store.uri}"
            raise DataError(f"{row}: {gone}")
        return replace(why(store, earlier, row), run=record.run, state="kept", kept=key.kept)
    everything = recipe.searches_all() or bool(recipe.conditions())  # as `AnswerSources.row`
    stored = arrow.question.records(store.rows("questions", "id", [row]))
    # The question as the run read it; None if other files have replaced it since.
    rows = ((q, row_key(q, record.snapshot, everything, recipe.turns_digest())) for q in stored)
    asked = next((q for q, row in rows if row == key.row), None)
    answered = _answered(store, key)
    failed = final_last(store.rows("faults", "digest", [key.key]))[-1:] if answered is None else []
    lost = tuple(Fault(r["step"], r["reason"], r["detail"], r["transient"]) for r in failed)
    before = find(store, record.previous) if record.previous else None
    own: Mapping[str, Difference] = {}
    if before is not None:
        own = with_lines(differences(before.stages, record.stages), before.recipe, record.recipe)
    old = answer_keys(store, before.run).get(row) if before else None
    parts = _parts(question, record.snapshot, everything) if (question := asked or answered) else {}
    if question and key.absent:
        parts["absent"] = _absent(store, record, recipe, question)
    index = LanceIndex(searched_at(store.uri, recipe, record.tables))  # as the run searched

    def why_of(name: str) -> str:
        if key.reused:
            return ""
        if old is None or old.row != key.row:
            return "row"
        stage = record.stage(name)
        assert stage is not None, name
        found = reason(before, stage, own)
        return "evidence" if found == "row" and old.absent != key.absent else found

    stopped = answered or (asked and replace(asked, faults=lost))
    explained = Explanation(
        question=row,
        run=record.run,
        recipe=record.digest,
        row=key.row,
        key=key.key,
        parts=parts,
        state="reused" if key.reused else "computed",
        faults=lost,
        previous=before.run if before else "",
        changed=_changed(store, before, old, key, parts, everything),
        differences=tuple(own.values()),
        adopted=tuple(m.adopted for m in record.models if m.adopted),
        steps=_steps(store, record, recipe, index, asked, stopped, key, why_of),
    )
    if answered is None:
        return replace(explained, state="fault" if lost else "missing")
    return _answer(explained, index, answered)


def _answer(explained: Explanation, index: LanceIndex, answered: Question) -> Explanation:
    """Adds the stored answer with its quotes and replies."""
    url, quotes = urls(answered), quotes_of(answered)
    if unnamed := [q.source for q in quotes if not url.get(q.source)]:
        url |= index.fields().urls(unnamed)  # of another question's citation, or of a file of a folder
    texts = asyncio.run(index.texts([chunk_id(q.source, q.span) for q in quotes])) if quotes else []
    evidence = [
        AnswerQuote(url.get(q.source), q.source, q.span, t) for q, t in zip(quotes, texts, strict=True)
    ]
    shown = {name: reply for name, reply in answered.replies.items() if reply.label != TRACE}
    return replace(
        explained,
        answer=answered.answer,
        outcome=answered.outcome,
        evidence=tuple(evidence),
        replies={name: StepReply(r.label, r.text, r.confidence) for name, r in shown.items()},
        faults=tuple(faults_of(answered)),
    )


def _id(record: Run, keys: Collection[str], row: str) -> str:
    """Resolves an id or a unique beginning of one. Raises DataError if none or several match."""
    matches = [row] if row in keys else sorted(k for k in keys if row and k.startswith(row))
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join((matches or sorted(keys))[:LISTED])
    if not matches:
        raise DataError(f"run {record.run} has no question {row!r}; it has {len(keys)}, such as {listed}")
    more = f", and {len(matches) - LISTED} more" if len(matches) > LISTED else ""
    raise DataError(f"{len(matches)} questions of run {record.run} begin with {row!r}: {listed}{more}")


def _answered(store: Store, key: AnswerKey) -> Question | None:
    found = arrow.question.records(store.rows("answers", "key", [key.key]))
    return found[0] if found else None


def _parts(question: Question, snapshot: str, everything: bool = False) -> dict[str, str]:
    """Maps the name of each part of a question's row key (a digest by `recipe.row_key`) to its text."""
    parts = {"text": question.text, "body": question.body, "asked_at": question.asked_at}
    parts |= {f"turn {n}": f"{t.role}: {t.text}" for n, t in enumerate(question.turns, 1)}
    if question.citations is None or everything or question.where:
        parts["snapshot"] = snapshot
    if question.where:
        parts["where"] = question.where
    for i, c in enumerate(question.citations or ()):
        named = [f"{n} {v}" for n in ("page", "snippet", "name") if (v := getattr(c, n)) is not None]
        parts[f"citation {i}"] = "; ".join([str(c.rank), c.url, c.modified, *named])
    return parts


def _absent(store: Store, record: Run, recipe: Recipe, question: Question) -> str:
    """Lists the sources that were missing for the answer, each with the tables that lacked it."""
    cited, searched = question.sources(), all_sources(store, recipe.source_kinds())
    whole = cited is None or recipe.searches_all()
    if not whole:
        searched = searched.where(stand_in(searched.array, Ids.of(cited or ()).array))
    lacks = by_source(lacking(store, recipe, searched, record.tables, whole))
    return "; ".join(f"{source}: no {', no '.join(lacks[source])}" for source in sorted(lacks))


def _changed(
    store: Store,
    before: Run | None,
    old: AnswerKey | None,
    key: AnswerKey,
    parts: Mapping[str, str],
    everything: bool,
) -> tuple[str, ...]:
    """Lists the parts of the row key (text, citations, ...) that differ between the run `before` and this
    run. `old` and `key` are the keys of both answers. Returns () without a run `before`, ("absent",) if only
    the missing sources differ, and ("row",) if `before` lacks the question or its stored answer does not show
    the difference. Lists all parts if `before` stored no answer."""
    if before is None:
        return ()
    if old is None:
        return ("row",)
    if old.row == key.row:
        return () if old.absent == key.absent else ("absent",)
    then = _answered(store, old)
    was = _parts(then, before.snapshot, everything) if then else {}
    return tuple(n for n in dict.fromkeys([*parts, *was]) if parts.get(n) != was.get(n)) or ("row",)


def _steps(
    store: Store,
    record: Run,
    recipe: Recipe,
    index: LanceIndex,
    question: Question | None,
    answered: Question | None,
    key: AnswerKey,
    why_of: Callable[[str], str],
) -> tuple[StageRequests, ...]:
    """Lists the requests of each stage, by running the question through the stages with cached values only.

    A stage from outside raypipe is not run, and a stage with a stored fault cannot run. The replies that such
    a stage wrote are then taken from `answered` (`as_answered`): the stored answer, or the question with its
    fault. If another stage needs a value that is not cached, the requests from there on are unknown."""
    kit = CacheOnlyKit(LocalKit(index))
    memo = StoreMemo(store.uri, memo_versions(store))
    found: list[StageRequests] = []
    for stage in recipe.question:
        unknown = StageRequests(stage.name, why_of(stage.name), None, None, None)
        if question is None:
            found.append(unknown)
            continue
        if stage.plugin is not None:  # code from outside is not imported
            asks = asked_models(stage.step) or requested_by(stage.step)
            found.append(unknown if asks else replace(unknown, requests=0, computed=0, cached=0))
            question = as_answered(recipe, stage, question, answered)
            continue
        recorder, refused = RecordingMemo(memo), None
        chats = ChatRecorder(cached(kit, recorder, CallCounts()))
        try:
            with asyncio.Runner() as loop:
                ask = QuestionExecutor(replace(recipe, question=(stage,)), chats)
                [question] = loop.run(ask([question]))
            done = _requests(store, record, recorder, key, unknown)
        except StageError as e:
            if not isinstance(e.__cause__, NotCached):
                raise
            refused, done = next(iter(faults_at(stage, answered) if answered else ()), None), unknown
            question = as_answered(recipe, stage, question, answered) if refused else None
        recorded = list[ModelChat]()
        for chat, reply in dict(call for calls in chats.calls.values() for call in calls).items():
            made = reply or refused
            text = f"{made.reason}: {made.detail}" if isinstance(made, Fault) else made and made.text
            recorded.append(ModelChat(tuple(chat), text))
        found.append(replace(done, chats=tuple(recorded)))
    return tuple(found)


def as_answered(
    recipe: Recipe, stage: Stage[Step], question: Question, answered: Question | None
) -> Question | None:
    """Returns the question with the replies of a stage that is not run, taken from the stored answer
    `answered`. Returns None if `answered` lacks a reply, or if the stage writes more than its own replies."""
    others = {w for s in recipe.question if s is not stage for w in s.step.writes()}
    names = [w.removeprefix("replies.") for w in stage.step.writes()]
    if answered is None or stage.step.writes() & others or not all(n in answered.replies for n in names):
        return None
    return replace(question, replies={**question.replies, **{n: answered.replies[n] for n in names}})


def _requests(
    store: Store, record: Run, recorder: RecordingMemo, key: AnswerKey, unknown: StageRequests
) -> StageRequests:
    wanted = {(a.table.name, k): a.table for a in recorder.requests for k in a.keys}
    tables = {t.name: t for t in wanted.values()}
    old = 0
    try:
        for name, table in tables.items():
            keys = [k for t, k in wanted if t == name]
            old += len(keys) if key.reused else len(lookup(store, table, keys, record.memo.get(name, 0)))
    except StoreError:  # prune has removed that version of the memo
        return replace(unknown, requests=len(wanted))
    return StageRequests(unknown.step, unknown.reason, len(wanted), len(wanted) - old, old)
