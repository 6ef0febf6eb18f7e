"""Laws of steps as checks on fixed rows, such as "the same questions come back in the same order".

Each law is a function of a `Trial` that raises LawBroken if the step breaks the law. Tests check the shipped
steps, `raypipe check` all others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from raypipe.core import arrow
from raypipe.core.errors import LawBroken
from raypipe.core.protocols import Kit, Reach
from raypipe.core.records import ANSWERED, SKIPPED_REPLY, Question, Reply
from raypipe.recipes.step_contract import bound_of, corpus_bound_of, is_bounded, named, of_turns
from raypipe.store.memo.cached import CallCounts, cached

UNDECLARED, UNREAD = "which writes() does not name", "a field that reads() does not name"


@dataclass(frozen=True, slots=True)
class Trial:
    step: Any
    kit: Kit
    given: Any  # input: list of questions, or a corpus table
    out: Any


def run(step: Any, kit: Kit, given: Any) -> Any:
    return asyncio.run(step.open(kit)(given))


def question_rows(trial: Trial) -> None:
    """Checks that the same questions come back in the same order, also if the input is reversed."""
    _expect([q.id for q in trial.out] == [q.id for q in trial.given], "it returns other questions")
    backwards = run(trial.step, trial.kit, trial.given[::-1])
    _expect(backwards == trial.out[::-1], "the order of the questions changes its output")


def question_batch(trial: Trial) -> None:
    """Checks f(a + b) == f(a) + f(b): neither batching nor a repeated question changes the output."""
    for cut in range(len(trial.given) + 1):
        halves = [run(trial.step, trial.kit, part) for part in (trial.given[:cut], trial.given[cut:])]
        _expect(halves[0] + halves[1] == trial.out, f"a cut after {cut} questions changes its output")
    alone = [run(trial.step, trial.kit, [q])[0] for q in trial.given]
    _expect(alone == trial.out, "one question at a time changes its output")
    twice = run(trial.step, trial.kit, [trial.given[0], trial.given[0]])
    _expect(twice == [trial.out[0]] * 2, "a repeated question changes its output")


def question_writes(trial: Trial) -> None:
    """Checks that the step changes only fields, replies, hits and scores of hits that are in writes(). Faults
    may change. Scores go with their hit if a step that may write hits drops it."""
    writes = trial.step.writes()
    for before, after in zip(trial.given, trial.out, strict=True):
        if "hits" in writes:
            left = {h.chunk for h in after.hits}
            before = replace(before, hits=tuple(h for h in before.hits if h.chunk in left))
        names = {f.name for f in fields(before)} - {"replies", "faults"}
        names |= {f"replies.{name}" for name in (*before.replies, *after.replies)}
        names |= {f"hits.{score}" for h in (*before.hits, *after.hits) for score in h.scores}
        for name in sorted(names - writes):
            _expect(_written(after, name) == _written(before, name), f"it writes {name}, {UNDECLARED}")


def question_reads(trial: Trial) -> None:
    """Checks that the step reads only the fields in reads(). Undeclared replies, scores and fields of
    POISONED are replaced by bombs, which raise when used. This must not change any output in writes()."""
    reads, writes = trial.step.reads(), trial.step.writes()
    try:
        out = run(trial.step, trial.kit, [poisoned(q, reads) for q in trial.given])
    except (Burst, KeyError) as e:
        raise LawBroken(f"it reads {UNREAD}: {e}") from e
    for clean, found in zip(trial.out, out, strict=True):
        for name in writes:
            _expect(_written(found, name) == _written(clean, name), f"{name} depends on {UNREAD}")


def question_turns(trial: Trial) -> None:
    """Checks that a step for earlier turns (`of_turns`) only skips its replies if a question has no turns."""
    into = named(trial.step.writes(), "replies") if of_turns(trial.step) else []
    for before, after in zip(trial.given, trial.out, strict=True):
        if into and not before.turns:
            skipped = {**before.replies, **dict.fromkeys(into, SKIPPED_REPLY)}
            _expect(after == replace(before, replies=skipped), "it changes a question without earlier turns")


def _written(question: Question, name: str) -> Any:
    """Returns the value that a step wrote under a name of writes()."""
    head, _, rest = name.partition(".")
    if head == "hits" and rest:
        return {h.chunk: h.scores[rest] for h in question.hits if rest in h.scores}
    if head == "hits":
        return [h.chunk for h in question.hits]
    return question.replies.get(rest) if head == "replies" else getattr(question, head)


def question_bound(trial: Trial) -> None:
    """Checks that calls, hits and ranking of each question stay within the step's bound, if it has one."""
    if not is_bounded(trial.step):
        return
    for q in trial.given:
        counts = CallCounts()
        [out] = run(trial.step, cached(trial.kit, None, counts), [q])
        longest = max((b - a for a, b in (h.span for h in q.hits)), default=0)
        bound = bound_of(trial.step, q, Reach(len(q.hits), len(q.order), longest))
        order = max(bound.reach.order, len(q.order))
        _within("calls", counts.computed, bound.calls)
        _within("hits", len(out.hits), bound.reach.hits)
        _within("passages in order", len(out.order), order)


def _within(what: str, found: int, most: float) -> None:
    _expect(found <= most < math.inf, f"{found} {what} of one row, but bound() allows {most}")


def corpus_rows(trial: Trial) -> None:
    """Checks that output rows name input rows, and that rows of a source are adjacent and in order."""
    given, out = trial.given["source"].to_pylist(), trial.out["source"].to_pylist()
    _expect(set(out) <= set(given), "an output row names a source that is not in its input")
    _expect(out == sorted(out, key=given.index), "the rows of a source are not adjacent, or not in order")


def corpus_batch(trial: Trial) -> None:
    """Checks f(a + b) == f(a) + f(b): batching does not change the output."""
    for cut in range(trial.given.num_rows + 1):
        halves = [run(trial.step, trial.kit, t) for t in (trial.given.slice(0, cut), trial.given.slice(cut))]
        both = pa.concat_tables(halves)
        same = both.schema.equals(trial.out.schema) and both.to_pylist() == trial.out.to_pylist()
        _expect(same, f"a cut after {cut} rows changes its output")


def corpus_faults(trial: Trial) -> None:
    """Checks that a row with a fault gives one row with the same fault."""
    fault = {"step": "read", "reason": "made_up", "detail": "for this check", "transient": False}
    column = pa.array([fault, *trial.given["fault"].to_pylist()[1:]], arrow.FAULT)
    at = trial.given.schema.get_field_index("fault")
    out = run(trial.step, trial.kit, trial.given.set_column(at, "fault", column))
    first = trial.given["source"][0].as_py()
    found = [r["fault"] for r in out.to_pylist() if r["source"] == first and r["fault"]]
    _expect(found == [fault], f"expected a faulty row to pass unchanged, found {found}")


def corpus_writes(trial: Trial) -> None:
    """Checks that the step adds only the columns in writes()."""
    added = set(trial.out.column_names) - set(trial.given.column_names)
    strange = sorted(added - trial.step.writes())
    _expect(not strange, f"it writes {', '.join(strange)}, {UNDECLARED}")


def corpus_reads(trial: Trial) -> None:
    """Checks that the step reads only the columns in reads(), source and fault. Without all other columns,
    the columns in writes() must be the same."""
    reads = {*trial.step.reads(), "source", "fault"}
    given = trial.given.select([n for n in trial.given.column_names if n in reads])
    try:
        out = run(trial.step, trial.kit, given)
    except KeyError as e:
        raise LawBroken(f"it reads {UNREAD}: {e}") from e
    for name in trial.step.writes() & set(trial.out.column_names):
        same = out[name].to_pylist() == trial.out[name].to_pylist()
        _expect(same, f"{name} depends on {UNREAD}")


def corpus_bound(trial: Trial) -> None:
    """Checks that no source gets more rows than the step's bound allows for the longest text of the input."""
    if not is_bounded(trial.step):
        return
    column = next(c for c in ("chunk_text", "text", "content") if c in trial.given.column_names)
    texts = dict(zip(*(trial.given[c].to_pylist() for c in ("source", column)), strict=True))
    given, out = trial.given["source"].to_pylist(), trial.out["source"].to_pylist()
    longest = max(len(t or "") for t in trial.given[column].to_pylist())
    bound = corpus_bound_of(trial.step, longest)
    for source in texts:
        _within("rows", out.count(source), given.count(source) * bound.rows)


Law = Callable[[Trial], None]


def _by_name(*laws: Law) -> dict[str, Law]:
    """Returns the laws of one half of a recipe by their short names: "rows" -> `question_rows`."""
    return {law.__name__.partition("_")[2]: law for law in laws}


QUESTION_LAWS: Mapping[str, Law] = _by_name(
    question_rows, question_batch, question_writes, question_turns, question_reads, question_bound
)
CORPUS_LAWS: Mapping[str, Law] = _by_name(
    corpus_rows, corpus_batch, corpus_faults, corpus_writes, corpus_reads, corpus_bound
)


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise LawBroken(message)


class Burst(Exception):
    """Error of a step that reads a field without declaring it, raised by `Bomb`."""


class Bomb:
    """Placeholder for an undeclared field. It may be passed on; most other uses raise Burst."""

    def _burst(self, *args: Any, **kwargs: Any) -> Any:
        raise Burst("a field of the question was used")

    __str__ = __repr__ = __len__ = __iter__ = __bool__ = __eq__ = __lt__ = __add__ = _burst
    __getitem__ = __contains__ = __getattr__ = __float__ = __format__ = __call__ = _burst
    __hash__ = None  # type: ignore[assignment]


class Poisoned(Mapping[str, Any]):
    """A mapping whose undeclared values are bombs. Copying it does not trigger them."""

    def __init__(self, values: Mapping[str, Any], allowed: Collection[str]) -> None:
        self._values = {k: v if k in allowed else Bomb() for k, v in values.items()}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


POISONED = ("text", "body", "asked_at", "citations", "answer", "outcome", "origin", "order", "due", "turns")


def poisoned(question: Question, reads: frozenset[str]) -> Question:
    """Replaces undeclared fields (POISONED), replies and scores by bombs; adds a reply `gold`."""
    change: dict[str, Any] = {name: Bomb() for name in POISONED if name not in reads}
    told = {**question.replies, "gold": Reply("the gold answer", ANSWERED)}
    change["replies"] = Poisoned(told, named(reads, "replies"))
    scores = named(reads, "hits")
    change["hits"] = tuple(replace(h, scores=Poisoned(h.scores, scores)) for h in question.hits)
    return replace(question, **change)
