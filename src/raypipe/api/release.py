"""Releases (promoted runs, which answer live questions), and deletion. `prune` deletes tables that nothing
references; `forget` deletes pages, documents or questions, also from the folders of runs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raypipe.api.compare import left_out, scored_at
from raypipe.api.paths import several
from raypipe.api.results import Result
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError
from raypipe.evaluation.compare import RunComparison, compare, open_text
from raypipe.evaluation.forgotten import adapters_of, in_folders, trained_on
from raypipe.evaluation.scored_run import ScoredRun, stored_run
from raypipe.metrics.paired_tests import not_worse
from raypipe.recipes.serialize import description
from raypipe.runs import forget as forgetting
from raypipe.runs import prune as pruning
from raypipe.runs import release
from raypipe.runs.forget import Forgetting, Target, find_target, named_versions
from raypipe.runs.gates import MIN_SCORED, NAMED, GateFailed, RelativeGate, gate, relative_gate
from raypipe.runs.pipeline.ingest_log import outdate, reads_with
from raypipe.runs.pipeline.ingest_staging import write_tombstone
from raypipe.runs.prune import Removal
from raypipe.runs.record import Run, find, read
from raypipe.runs.release import Release, ReleaseLine, end_releases, summary
from raypipe.store import Store, StoreError
from raypipe.store.files import FORGETTING
from raypipe.store.housekeeping import DiskBytes, disk_bytes, unfinished
from raypipe.store.memo.disk import merge_memo, note_loss
from raypipe.store.segments import read_record, write_record
from raypipe.store.sources import merge_sizes
from raypipe.store.tables import OF_MEMO
from raypipe.store.text_places import FoundText, Gone, in_small_files, in_tables


@dataclass(frozen=True, slots=True, repr=False)
class ReleaseResult(Result):
    """A release, which is the only row."""

    release: Release
    store: str  # URI of the store in which it is live

    def rows(self) -> Sequence[ReleaseLine]:
        return (summary(self.release, self.release.id),)

    def record(self) -> Mapping[str, Any]:
        return {**asdict(self.rows()[0]), "store": self.store}

    def not_followed(self) -> str:
        """Returns why endpoints of this raypipe cannot open the release, or "". An older raypipe made it."""
        try:
            description(self.release.recipe)
        except ConfError as e:
            return str(e)
        return ""


@dataclass(frozen=True, slots=True, repr=False)
class ReleasesResult(Result, rows="releases"):
    """Releases of a store, oldest first. Each release is a row."""

    releases: tuple[ReleaseLine, ...]
    live: str  # id of the live release; "": none is live


@dataclass(frozen=True, slots=True, repr=False)
class PruneResult(Result, rows="removed"):
    """Things that a prune deleted, or would delete. Each thing is a row."""

    dry_run: bool
    removed: tuple[Removal, ...]
    disk: DiskBytes  # bytes of the store's tables after the prune


def promote(
    run: str | Path,
    gates: str | Sequence[str] = (),
    store: Place = None,
    min_scored: float | None = None,
    session: Session | None = None,
    against: str | Path | None = None,
) -> ReleaseResult:
    """Makes a finished run the live release, if it passes the gates.

    A gate is a bound on a number of the run, such as `score>=0.1`. The whole 95 % interval of a measure or
    share must meet its bound, except for `==`, and at least `min_scored` of the questions must be scored
    (0..1; None: 0.95). The gates `better`, `not-worse` and `not-worse:M` compare the run with the run in the
    folder `against` (None: the live release's run), over the questions of both runs. `store` has the tables
    of the run; None means the store that the run used. Raises GateFailed if a gate fails; the live release
    then does not change. Raises ConfError for invalid gates.
    """
    session = session or Session()
    record, opened = finished(run, store, session)
    held = [(text, relative_gate(text)) for text in ([gates] if isinstance(gates, str) else gates)]
    relative, bounds = [g for _, g in held if g], [gate(text) for text, g in held if g is None]
    if against is not None and not relative:
        raise ConfError("--against: expected --gate better or --gate not-worse with it, found neither")
    now = release.live(opened) if relative and against is None else None
    for g in relative:
        if against is not None:
            other = scored_at(session, against, "official")
        elif now is None:
            raise ConfError(f"gate {g.text}: nothing is live to compare with; name a run with --against DIR")
        elif (past := find(opened, now.run)) is not None:
            other = stored_run(opened, past)
        else:
            why = f"{opened.uri} has no record of run {now.run}, which is live"
            raise ConfError(f"gate {g.text}: {why}; name its folder with --against DIR")
        check_gate(g, scored_at(session, run, record.rule), other)
    least = MIN_SCORED if min_scored is None else min_scored
    made = release.promote(opened, record, bounds, least, [g.text for g in relative], now)
    return ReleaseResult(made, opened.uri)


def finished(run: str | Path, store: Place, session: Session | None) -> tuple[Run, Store]:
    """Reads a finished run's record, and opens `store`; None: the store that the run used."""
    session = session or Session()
    record = read(session.local_run(run))
    return record, session.store(record.store if store is None else store)


_POWER = 2.49  # z(.95) + z(.8): a margin of 2.49 standard errors gives a power of 80 %


def check_gate(gate: RelativeGate, run: ScoredRun, other: ScoredRun) -> RunComparison:
    """Compares a run with `other`, and returns the comparison if `gate` passes. Raises GateFailed with the
    reasons if it does not, and DataError for runs that cannot be compared."""
    (found,) = compare([other, run], gate.margin)
    if found.verdict == "better" if gate.better else not_worse(found.at_worst, gate.margin):
        return found
    d = found.score
    reasons = [f"{found.measure} {d.difference:+.3f} over {d.n} questions, p {found.p:.3g}, {found.verdict}"]
    if found.open:
        reasons.append(open_text(found))
    if not gate.better:
        d = found.at_worst
    needed = (d.questions_needed or 0) - d.n
    if found.verdict == "cannot tell" and gate.better and not found.open and needed > 0:
        reasons.append(f"{needed} more questions would show this difference")
    if d.interval is None:
        reasons.append(f"{d.groups} groups of questions are too few")
    if not gate.better and d.interval_90 is not None:
        reasons.append(f"it may be {-d.interval_90[0]:.3f} worse, {gate.margin:g} is allowed")
        room, error = d.difference + gate.margin, (d.interval_90[1] - d.interval_90[0]) / 2 / 1.645
        more = "more questions would not help: the difference itself is larger"
        if room > 0:  # questions that would show it, if the difference stays the same
            needed = math.ceil(d.n * (_POWER * error / room) ** 2)
            more = f"{max(1, needed - d.n)} more questions would show that it is not"
        reasons.append(more)
    for name, n in ((found.after, found.seen[1]), (found.before, found.seen[0])):
        if n:
            reasons.append(f"a fit or an adapter of {name} has seen {n} of them")
    reasons += [f"left out: {line}" for line in left_out(found, NAMED)]
    why = f"{'; '.join(reasons)}. live stays as it is"
    raise GateFailed(f"gate {gate.text}: {run.name} against {other.name}: {why}")


def rollback(store: Place = None, session: Session | None = None) -> ReleaseResult:
    """Makes the release before the live release live again. Raises ConfError if there is none before it."""
    opened = (session or Session()).store(store)
    return ReleaseResult(release.rollback(opened), opened.uri)


def releases(store: Place = None, session: Session | None = None) -> ReleasesResult:
    """Lists the releases of a store, oldest first."""
    opened = (session or Session()).store(store)
    now = release.live(opened)
    live = now.id if now else ""
    return ReleasesResult(tuple(summary(r, live) for r in release.releases(opened)), live)


def prune(
    store: Place = None,
    dry_run: bool = False,
    abandon: Sequence[str] = (),
    replies: Sequence[str] = (),
    session: Session | None = None,
) -> PruneResult:
    """Deletes tables, rows, records and adapters that nothing in use references; `dry_run` only lists them.

    Also deletes old versions of tables, and files that killed commands left. `abandon` names unfinished work
    to give up; a refused prune lists these names. `replies` names language models that are out of use, whose
    replies are also deleted. Raises StoreError if work is unfinished, except for `dry_run`. Raises ConfError
    for an unknown name.
    """
    opened = (session or Session()).store(store)
    found = pruning.prune(opened, dry_run, abandoned=abandon, replies=replies)
    return PruneResult(dry_run, tuple(found), disk_bytes(opened))


FOLLOW_S = 3.0
"""Seconds between the end of releases and the removal of their tables. An endpoint in use reads the name of
the live release each second (`release_follower.POLL_S`), and then needs time to answer earlier requests."""


@dataclass(frozen=True, slots=True, repr=False)
class ForgetResult(Result, rows="holdings"):
    """Places that hold forgotten texts or results of them, with the action at each. Each place is a row."""

    store: str  # URI
    targets: tuple[Target, ...]
    reason: str  # the reason in the tombstones of the targets
    dry_run: bool
    finished: bool  # True: this call finished a forget that was killed
    holdings: tuple[FoundText, ...]


def forget(
    names: str | Sequence[str],
    store: Place = None,
    dry_run: bool = True,
    reason: str = "",
    runs: Sequence[str | Path] = (),
    session: Session | None = None,
) -> ForgetResult:
    """Lists the places that hold pages, documents or questions, or results that depend on them.

    `names` are urls that questions cite, paths or ids of documents, or ids of sources or questions. `dry_run`
    False removes all that is listed, and leaves tombstones (digests of the texts), by which ingest refuses
    the same texts with `reason`. `runs` are further folders of runs and of training labels, or folders that
    contain these; the runs under $RAYPIPE_HOME are always searched. The same call finishes a killed forget.
    Raises DataError for an unknown name. A removal raises ConfError without a `reason`, and StoreError during
    other unfinished work.
    """
    session = session or Session()
    opened = session.store(store)
    given = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    if not given or not all(name.strip() for name in given):
        raise ConfError("forget: expected a url, a path, or an id of a source or question, found none")
    places = [Path(p).absolute() for p in several(runs)]
    if wrong := next((p for p in places if not p.is_dir()), None):
        raise ConfError(f"--runs {wrong}: expected the folder of a run, or of several; found none")
    home = session.settings.home / "runs"
    places = [*([home] if home.is_dir() else []), *places, *trained_on(opened)]
    if dry_run:
        targets = tuple(find_target(opened, name) for name in given)
        found = tuple(_Removal(opened, targets, places).holdings(write=False))
        return ForgetResult(opened.uri, targets, reason, dry_run, False, found)
    with opened.lease("driver", "forget", forgetting=True):
        return _forget(opened, given, reason, places)


def _forget(store: Store, given: tuple[str, ...], reason: str, places: list[Path]) -> ForgetResult:
    """Removes the targets in an order that lets a killed command be repeated.

    Tombstones are written first, so that the targets are not ingested again. Then the releases that depend on
    the targets end, and endpoints notice. A thing is removed before the rows by which it is found: adapters
    before the labels that trained them, and both before the answers."""
    places_of = (f"{FORGETTING}/{name}" for name in store.files.names(FORGETTING))
    known = (read_record(store, place, Forgetting, "Restore its content") for place in places_of)
    begun = next((r for r in known if r is not None and r.given == given), None)
    if begun is None:  # a forget of other names must not be unfinished either
        store.require_forgotten()
    if left := unfinished(store):
        why = f"{store.uri}: {len(left)} pieces of work are unfinished ({', '.join(left[:3])})"
        text = "and may hold text to forget"
        do = "Run the same command again to its end, or `raypipe prune --abandon NAME`"
        raise StoreError(f"{why}, {text}. {do}")
    with store.lease("release", "forget"):
        if begun is None and not reason.strip():
            raise ConfError("forget: expected a reason for the tombstone, such as --reason 'licence ended'")
        merge_memo(store)
        targets = () if begun else tuple(find_target(store, name) for name in given)
        doing = begun or Forgetting(given, reason, targets, tuple(map(str, places)))
        removal = _Removal(store, doing.targets, list(map(Path, doing.places)))
        place = f"{FORGETTING}/{doing.targets[0].tombstone}.json"
        if begun is None:
            forgetting.check_readers(store, removal.gone)
            write_record(store, place, doing)
        for target in doing.targets:
            write_tombstone(store, target.buried(doing.reason))
        holdings = tuple(removal.holdings(write=True))
        merge_sizes(store)
        store.files.remove(place)
    return ForgetResult(store.uri, doing.targets, doing.reason, False, begun is not None, holdings)


class _Removal:
    """Removal of everything that the targets name, and of the results that depend on them."""

    def __init__(self, store: Store, targets: Sequence[Target], places: Sequence[Path]) -> None:
        self._store, self._places, self._named = store, places, named_versions(store)
        gone = forgetting.find(store, targets, self._named)
        adapters = adapters_of(store, gone, places)
        self.gone: Gone = replace(gone, adapters=tuple(adapters))
        self._releases = forgetting.resting(store, self.gone, self._named, set(adapters.values()))

    def holdings(self, write: bool) -> Iterator[FoundText]:
        """Yields each place that holds something to remove. `write` True: also removes it there."""
        store, gone = self._store, self.gone
        for note in reads_with(store, {*gone.questions, *gone.cited}, bool(gone.documents)):
            yield FoundText(f"note {note}", 0, "the next ingest reads its files again")
            if write:
                outdate(store, note)
        for id in self._releases:
            yield FoundText(f"release {id}", 0, "ends; the release before it answers, or none")
        if write and end_releases(store, self._releases):
            time.sleep(FOLLOW_S)
        for table in (t for t in gone.keyed if write and t.startswith(OF_MEMO)):
            note_loss(store, table, "forget")
        yield from in_small_files(store, gone, write)
        yield from in_folders(store, gone, self._places, write)
        yield from in_tables(store, gone, self._named, write)
