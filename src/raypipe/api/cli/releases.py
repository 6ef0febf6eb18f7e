"""Commands about releases (promote, rollback, releases), and about deletion (prune, forget)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shown, arg, command, table
from raypipe.api.session import Session
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.release import ForgetResult, PruneResult, ReleaseResult, ReleasesResult
    from raypipe.runs.release import ReleaseLine


@command("promote", "/data/runs/local --gate 'score>=0.1' --gate 'hallucination<=0.3'")
def promote(
    session: Session,
    run: str = shared.RUN,
    *,
    gates: Sequence[str] = arg(
        "bound on a number of the run; or, against the live release, better, not-worse or not-worse:M",
        "BOUND",
        flag="--gate",
        each=True,
    ),
    against: str | None = arg("the run to compare with, instead of the live release's", "DIR"),
    min_scored: float | None = arg("least share of scored questions (0.95)", "SHARE", shared.share_or_0),
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
    if why := found.not_followed():
        print(f"note: endpoints of this raypipe keep the release that they answer with: {why}")


def _score(row: ReleaseLine) -> str:
    """Formats the measures of a release, with the number of questions behind each."""
    said = []
    if row.score is not None:
        said.append(f"{row.score:+.3f} on {row.scored} of {row.questions}")
    lead = row.measure
    if lead is not None and lead.measure != "score" and lead.mean is not None:
        said.append(f"{lead.measure} {lead.mean:.3f} on {lead.scored} of {lead.of}")
    return ", ".join(said) or "not scored"


@command("releases", "--store /data/store")
def releases(session: Session, *, place: shared.StoreFlags) -> Shown[Any]:
    def show(found: ReleasesResult) -> None:
        rows = [(r.id, "live" * r.live, r.recipe, r.run, _score(r)) for r in found.releases]
        if rows:
            table(("release", "live", "recipe", "run", "score"), rows)
        else:
            print("no releases; `raypipe promote DIR` makes one of a finished eval")

    return Shown(raypipe.releases(place.uri(session), session), show)


@command("prune", "--store /data/store")
def prune(
    session: Session,
    *,
    place: shared.StoreFlags,
    dry_run: bool = arg("list what would be deleted"),
    abandon: Sequence[str] = arg("give up this unfinished work, named by a refused prune", "RUN", each=True),
    replies: Sequence[str] = arg("also delete replies of this model, now out of use", "MODEL", each=True),
) -> Shown[Any]:
    def show(found: PruneResult) -> None:
        for r in found.removed:
            print(f"{r.kind} {r.name}: {r.rows} rows")
        things = "thing" if len(found.removed) == 1 else "things"
        print(f"{len(found.removed)} {things} {'would be deleted' if found.dry_run else 'deleted'}")
        live, old = found.disk.live / 1e6, found.disk.old / 1e6
        print(f"tables: {live:,.1f} MB as they are now, {old:,.1f} MB of older versions")

    return Shown(raypipe.prune(place.uri(session), dry_run, abandon, replies, session), show)


@command("forget", "https://example.org/page --reason 'licence ended' --yes --store /data/store")
def forget(
    session: Session,
    names: Sequence[str] = arg("urls, paths or ids of documents, sources or questions", "ID", needed=True),
    *,
    dry_run: bool = arg("list the places that hold it or rest on it; this or --yes is required"),
    yes: bool = arg("remove it permanently"),
    reason: str = arg("reason that its tombstone shows when it is ingested again", "TEXT", default=""),
    runs: Sequence[str] = arg("also this folder of runs or labels (under $RAYPIPE_HOME)", "DIR", each=True),
    place: shared.StoreFlags,
) -> Shown[Any]:
    if dry_run == yes:
        raise ConfError("expected one of --dry-run and --yes")

    def show(found: ForgetResult) -> None:
        for h in found.holdings:
            print(f"{h.place}: {h.rows} {h.does}" if h.rows else f"{h.place}: {h.does}")
        again = " by finishing what a killed command began" if found.finished else ""
        for t in found.targets if not dry_run else ():
            said = f"{t.kind} {t.name} is forgotten{again}; tombstone {t.tombstone[:8]}"
            print(f"{said} refuses it from now on")
        if dry_run:
            what = ", ".join(f"{t.kind} {t.name}" for t in found.targets)
            print(f"{what}: {len(found.holdings)} places hold it; nothing was removed (--yes removes it)")

    return Shown(raypipe.forget(names, place.uri(session), dry_run, reason, runs, session), show)
