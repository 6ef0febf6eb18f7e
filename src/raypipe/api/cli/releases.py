"""Commands that decide what answers live questions: promote, rollback, releases, prune, forget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shown, arg, command, table
from raypipe.api.session import Session
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.forget import ForgetResult
    from raypipe.api.release import PruneResult, ReleaseResult, ReleasesResult
    from raypipe.runs.release import ReleaseLine


@command("promote", "/data/runs/local --gate 'score>=0.1' --gate 'hallucination<=0.3'")
def promote(
    session: Session,
    run: str = shared.RUN,
    *,
    gates: Sequence[str] = arg(
        "a bound on a number of the run; or against the live release: better, not-worse, not-worse:M",
        "BOUND",
        flag="--gate",
        each=True,
    ),
    against: str | None = arg("the run to compare with, in place of the live release's", "DIR"),
    min_scored: float | None = arg(
        "of questions, that a gate needs scored (0.95)", "SHARE", shared.share_or_0
    ),
    store: str | None = arg("where the run's store is now (default: where it was)", "URI"),
) -> Shown[Any]:
    made = raypipe.promote(run, gates, store, min_scored, session, against)
    return Shown(made, _print_release)


@command("rollback", "--store /data/store")
def rollback(session: Session, *, place: shared.StoreFlags) -> Shown[Any]:
    return Shown(raypipe.rollback(place.uri(session), session), _print_release)


def _print_release(found: ReleaseResult) -> None:
    from raypipe.runs.gates import seen_by_a_fit

    made, score = found.release, _score(found.rows()[0])
    seen = seen_by_a_fit(made.seen)
    print(f"live in {found.store}: {made.id}, recipe {made.title}, run {made.run}, {score}{seen}")


def _score(row: ReleaseLine) -> str:
    """The measures of a release, and how many questions each rests on."""
    said = []
    if row.score is not None:
        said.append(f"{row.score:+.3f} on {row.scored} of {row.questions}")
    lead = row.measure
    if lead is not None and lead.measure != "score" and lead.mean is not None:
        said.append(f"{lead.measure} {lead.mean:.3f} on {lead.scored} of {lead.of}")
    return ", ".join(said) or "not scored"


@command("releases", "--store /data/store")
def releases(session: Session, *, place: shared.StoreFlags) -> Shown[Any]:
    return Shown(raypipe.releases(place.uri(session), session), _list)


def _list(found: ReleasesResult) -> None:
    if not found.releases:
        print("no releases; `raypipe promote DIR` makes one of a finished eval")
        return
    rows = [(r.id, "live" * r.live, r.recipe, r.run, _score(r)) for r in found.releases]
    table(("release", "live", "recipe", "run", "score"), rows)


@command("prune", "--store /data/store")
def prune(
    session: Session,
    *,
    place: shared.StoreFlags,
    dry_run: bool = arg("list what would be deleted"),
    abandon: Sequence[str] = arg("give up unfinished work, as a refused prune names it", "RUN", each=True),
    replies: Sequence[str] = arg("also replies of a model that nothing asks any more", "MODEL", each=True),
) -> Shown[Any]:
    return Shown(raypipe.prune(place.uri(session), dry_run, abandon, replies, session), _print_removed)


def _print_removed(found: PruneResult) -> None:
    for r in found.removed:
        print(f"{r.kind} {r.name}: {r.rows} rows")
    things = "1 thing" if len(found.removed) == 1 else f"{len(found.removed)} things"
    print(f"{things} {'would be deleted' if found.dry_run else 'deleted'}")
    live, old = found.disk.live / 1e6, found.disk.old / 1e6
    print(f"tables: {live:,.1f} MB as they are now, {old:,.1f} MB of older versions")


@command("forget", "https://example.org/page --reason 'licence ended' --yes --store /data/store")
def forget(
    session: Session,
    names: Sequence[str] = arg(
        "urls, paths or ids of documents, ids of sources, questions", "ID", needed=True
    ),
    *,
    dry_run: bool = arg("list what holds it or rests on it: this or --yes is required"),
    yes: bool = arg("remove it, for good"),
    reason: str = arg("what its tombstone says when it is ingested again", "TEXT", default=""),
    runs: Sequence[str] = arg("also this folder of runs or labels (under $RAYPIPE_HOME)", "DIR", each=True),
    place: shared.StoreFlags,
) -> Shown[Any]:
    if dry_run == yes:
        raise ConfError("expected one of --dry-run and --yes")
    return Shown(raypipe.forget(names, place.uri(session), dry_run, reason, runs, session), _print_holdings)


def _print_holdings(found: ForgetResult) -> None:
    for h in found.holdings:
        print(f"{h.place}: {h.rows} {h.does}" if h.rows else f"{h.place}: {h.does}")
    again = " by finishing what a killed command began" if found.finished else ""
    for t in found.targets:
        if not found.dry_run:
            print(
                f"{t.kind} {t.name} is forgotten{again}; tombstone {t.tombstone[:8]} refuses it from now on"
            )
    if found.dry_run:
        what = ", ".join(f"{t.kind} {t.name}" for t in found.targets)
        print(f"{what}: {len(found.holdings)} things hold it; nothing was removed (--yes removes it)")
