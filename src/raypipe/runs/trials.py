"""Trials: a release that answers some live questions next to the live one, before it is live.

A canary gives the reply for a share of the questions, a shadow gives none; in both, the other release answers
the same question again after the reply was sent, so that each question is a pair. Which questions are chosen
follows from the question and the release alone, so the same question is always on the same side. Knows the
store's small files; answers nothing and judges nothing (`runs.trial_verdict`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from raypipe.core import arrow
from raypipe.core.errors import ConfError
from raypipe.core.records import digest
from raypipe.metrics.crag import Prediction
from raypipe.metrics.named_kinds import answer_values
from raypipe.runs.captured import feedback_since
from raypipe.runs.gates import Gate, check
from raypipe.runs.manifest import Manifest
from raypipe.runs.release import Release, live, make_release, release_of, releases
from raypipe.runs.store_records import read_lines, read_record, write_record
from raypipe.store import Store
from raypipe.store.layout import TRIAL_PAIRS, TRIALS
from raypipe.store.segments import segment_names

FORMAT = 1
Role: TypeAlias = Literal["canary", "shadow"]
ROLES: tuple[Role, ...] = get_args(Role)
_DIGITS = 12  # hex digits of a digest that choose a question: 48 bits
_DRAWN = float(16**_DIGITS)


@dataclass(frozen=True, slots=True)
class ReleaseTrial:
    """One release on trial."""

    format: int
    role: Role
    release: str  # id of the release on trial
    live: str  # id of the release that it is held against
    share: float  # of the questions, above 0 and at most 1
    gate: str  # that ends a canary: better, not-worse or not-worse:M; "": of a shadow
    started: float  # seconds since the epoch

    def takes(self, query: str) -> bool:
        """Whether both releases answer this question."""
        drawn = digest("trial", self.release, query)[:_DIGITS]
        return int(drawn, 16) / _DRAWN < self.share


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """What one release said."""

    answer: str
    outcome: str
    ms: float  # wall time; of the second answer after it began
    degraded: tuple[str, ...] = ()  # stages that were omitted


@dataclass(frozen=True, slots=True)
class Pair:
    """One question that both releases answered."""

    format: int
    role: Role
    release: str  # on trial
    live_release: str
    at: float  # seconds since the epoch
    question: str  # id: the stored one's, or a digest of its text
    stored: bool  # it is a stored question
    answer_id: str | None  # of the reply, where it was captured
    live: TrialAnswer
    trial: TrialAnswer


def read_trial(store: Store, role: Role) -> ReleaseTrial | None:
    """The trial of this role; None where there is none. Raises StoreError for a damaged file."""
    return read_record(store, f"{TRIALS}/{role}.json", ReleaseTrial, "Remove the file")


def begin_trial(
    store: Store, manifest: Manifest, role: Role, share: float, gate: str, bounds: Sequence[Gate] = (),
    min_scored: float = 0.95,
) -> tuple[ReleaseTrial, Release]:  # fmt: skip
    """Puts a finished run on trial; the same run again with the same share and gate changes nothing.

    `gate` ends a canary; `bounds` are gates on the run itself, which it must pass first. Raises ConfError
    where nothing is live, for the live run, an oracle run, a share out of range and another canary, and
    GateFailed.
    """
    if not 0 < share <= 1:
        raise ConfError(f"{role}: expected a share above 0 and at most 1, found {share:g}")
    if manifest.oracle:
        raise ConfError(f"run {manifest.run} is an oracle run, which cannot answer live questions")
    check(manifest, bounds, min_scored)
    with store.lease("release", f"{role} {manifest.run}"):
        now_live, before = live(store), read_trial(store, role)
        if now_live is None:
            raise ConfError(
                f"{role}: nothing is live in {store.uri} to hold the run against. Promote the first run "
                "without a trial: `raypipe promote DIR`"
            )
        if now_live.run == manifest.run:
            raise ConfError(f"{role}: run {manifest.run} is live already, as {now_live.id}")
        known = [r for r in releases(store) if r.run == manifest.run]
        if before is not None:
            same = (before.live, before.share, before.gate) == (now_live.id, share, gate)
            if same and before.release in [r.id for r in known]:
                return before, release_of(store, before.release)
            if role == "canary":
                raise ConfError(
                    f"canary: release {before.release} is one already. `raypipe trial` shows how it does, "
                    "and `raypipe trial --stop` ends it"
                )
        release = known[-1] if known else make_release(store, manifest, [g.text for g in bounds])
        trial = ReleaseTrial(FORMAT, role, release.id, now_live.id, share, gate, time.time())
        write_record(store, f"{TRIALS}/{role}.json", trial)
    return trial, release


def remove_trial(store: Store, trial: ReleaseTrial) -> None:
    """Takes a release off trial; the caller holds the lease `release`."""
    store.files.remove(f"{TRIALS}/{trial.role}.json")


def trials(store: Store) -> list[ReleaseTrial]:
    """The trials that are on, the canary before the shadow. Raises StoreError for a damaged file."""
    return [t for role in ROLES if (t := read_trial(store, role)) is not None]


class TrialEvidence:
    """The pairs of a trial and what is right about their questions; reads what came since it read last."""

    def __init__(self, store: Store, trial: ReleaseTrial) -> None:
        self.trial = trial
        self.pairs: list[Pair] = []
        self.first: dict[str, Pair] = {}  # question id -> its first pair
        self._store = store
        self._seen: set[str] = set()  # segments
        self._golds: dict[str, tuple[str, ...]] = {}  # question id -> stored ones

    def read(self) -> dict[str, tuple[str, ...]]:
        """Reads on, and returns question id -> what is right: the stored golds, and what users said."""
        names = segment_names(self._store.files, TRIAL_PAIRS, self.trial.started)
        of = (self.trial.role, self.trial.release, self.trial.live)
        unseen = [n for n in names if n not in self._seen]
        read = read_lines(self._store, TRIAL_PAIRS, unseen, Pair, FORMAT)
        came = [p for p in read if (p.role, p.release, p.live_release) == of]
        fresh = sorted({p.question for p in came} - self.first.keys())
        golds = arrow.gold.records(self._store.rows("golds", "question", fresh))
        self._seen.update(names)  # after all that may fail: what is read on then is read again
        self.pairs += came
        for pair in came:
            self.first.setdefault(pair.question, pair)
        self._golds |= {g.question: g.answers for g in golds if g.answers}
        found = dict(self._golds)
        said = feedback_since(self._store, self.trial.started)
        for pair in self.pairs if said else ():
            texts = [f.text for f in said.get(pair.answer_id or "", ()) if f.text is not None]
            if texts:
                found[pair.question] = tuple(dict.fromkeys((*found.get(pair.question, ()), *texts)))
        return found


def side_values(side: TrialAnswer, truths: tuple[str, ...]) -> Mapping[str, float]:
    """The measures of an answer (`metrics.kinds`). One that failed shares no word with what is right."""
    return answer_values(Prediction("", "" if side.outcome == "fault" else side.answer, truths))
