"""Commands that decide what answers live questions: promote, rollback, releases, prune, forget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import raypipe
from raypipe.api.cli.command import Args, called, command, printed, table

if TYPE_CHECKING:
    from raypipe.api.forget import ForgetResult
    from raypipe.api.release import PruneResult, ReleaseResult, ReleasesResult
    from raypipe.runs.release import ReleaseLine


@command
def _promote(args: Args) -> int:
    """raypipe promote /data/runs/local --gate 'score>=0.1' --gate 'hallucination<=0.3'
    run
    --gate BOUND ... {-> gates}: a bound on a number of the run, or a bound on its difference from the live
      release: better, not-worse, or not-worse:M
    --against DIR: the run to compare with, in place of the live release's
    --min-scored SHARE {share_or_0}: a gate on a share, such as score, needs this share of the questions
      scored (default: 0.95)
    --store URI: where the run's store is now (default: where it was)
    json
    """
    return printed(args, called(raypipe.promote, args), _print_release)


@command
def _rollback(args: Args) -> int:
    """raypipe rollback --store /data/store
    store
    json
    """
    return printed(args, called(raypipe.rollback, args), _print_release)


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


@command
def _releases(args: Args) -> int:
    """raypipe releases --store /data/store
    store json
    """
    return printed(args, called(raypipe.releases, args), _list)


def _list(found: ReleasesResult) -> None:
    if not found.releases:
        print("no releases; `raypipe promote DIR` makes one of a finished eval")
        return
    rows = [(r.id, "live" * r.live, r.recipe, r.run, _score(r)) for r in found.releases]
    table(("release", "live", "recipe", "run", "score"), rows)


@command
def _prune(args: Args) -> int:
    """raypipe prune --store /data/store
    store
    --dry-run: list what would be deleted
    --abandon RUN ...: give up unfinished work, by the name that a refused prune lists
    --replies MODEL ...: also delete the replies of a language model that nothing asks any more
    json
    """
    return printed(args, called(raypipe.prune, args), _print_removed)


def _print_removed(found: PruneResult) -> None:
    for r in found.removed:
        print(f"{r.kind} {r.name}: {r.rows} rows")
    things = "1 thing" if len(found.removed) == 1 else f"{len(found.removed)} things"
    print(f"{things} {'would be deleted' if found.dry_run else 'deleted'}")


@command
def _forget(args: Args) -> int:
    """raypipe forget https://example.org/page --reason 'licence ended' --yes --store /data/store
    names ID+: urls that questions cite, paths or ids of documents, or ids of sources or questions

    one of these:
    --dry-run: list what holds it or rests on it
    --yes: remove it, for good

    --reason TEXT {= ""}: what its tombstone says when it is ingested again
    --runs DIR ...: also look through this folder of runs or training labels (default: those under
      $RAYPIPE_HOME; may be repeated)
    store json
    """
    return printed(args, called(raypipe.forget, args), _print_holdings)


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
