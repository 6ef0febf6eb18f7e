"""Commands that decide what answers live questions: promote, rollback, releases, prune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raypipe.cli.command import Args, arg, called, command, console, printed, share, share_or_0
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.release import PruneResult, ReleaseResult, ReleasesResult


POINTER = arg(
    "--as POINTER",
    "live, or live@NAME, which tenants are given by the file of `serve --tenants` (default: live)",
    default="live",
    dest="pointer",
)


@command(
    "promote",
    "raypipe promote /data/runs/local --gate 'score>=0.1' --gate 'hallucination<=0.3'",
    "run",
    arg(
        "--gate BOUND ...",
        "a bound on a number of the run, or a bound on its difference from the live release: better, "
        "not-worse, or not-worse:M",
        dest="gates",
    ),
    arg("--against DIR", "the run to compare with, in place of the live release's"),
    arg(
        "--min-scored SHARE",
        "a gate on a share, such as score, needs this share of the questions scored (default: 0.95)",
        share_or_0,
    ),
    arg(
        "--canary SHARE",
        "have the run answer this share of the live questions first; a gate better, not-worse or "
        "not-worse:M makes it live or rolls it back",
        share,
        dest="share",
    ),
    POINTER,
    arg("--store URI", "where the run's store is now (default: where it was)"),
    "json",
)
def _promote(args: Args) -> int:
    from raypipe.api.release import promote

    if args.share is None:
        return printed(args, called(promote, args), _print)
    from raypipe.api.trials import start_canary
    from raypipe.cli.trial import print_trials

    if args.pointer != "live":
        raise ConfError("--canary tries a run next to `live`: expected no --as with it")
    if args.against is not None:
        raise ConfError("--canary holds the run against the live release: expected no --against with it")
    return printed(args, called(start_canary, args), print_trials)


@command(
    "rollback",
    "raypipe rollback --store /data/store",
    "store",
    POINTER,
    "json",
)
def _rollback(args: Args) -> int:
    from raypipe.api.release import rollback

    return printed(args, called(rollback, args), _print)


def _print(found: ReleaseResult) -> None:
    from raypipe.runs.release import seen_by_a_fit

    made, score = found.release, _score(found.to_json())
    where = f"{found.pointer} in {found.store}"
    print(f"{where}: {made.id}, recipe {made.name}, run {made.run}, {score}{seen_by_a_fit(made.seen)}")


def _score(row: Mapping[str, Any]) -> str:
    """The measures of a release, and how many questions each rests on."""
    said = []
    if row["score"] is not None:
        said.append(f"{row['score']:+.3f} on {row['scored']} of {row['questions']}")
    lead = row["measure"]
    if lead is not None and lead["name"] != "score" and lead["mean"] is not None:
        said.append(f"{lead['name']} {lead['mean']:.3f} on {lead['scored']} of {lead['of']}")
    return ", ".join(said) or "not scored"


@command(
    "releases",
    "raypipe releases --store /data/store",
    "store json",
)
def _releases(args: Args) -> int:
    from raypipe.api.release import releases

    return printed(args, called(releases, args), _list)


def _list(found: ReleasesResult) -> None:
    from rich.text import Text

    from raypipe.report.console import grid

    shown = grid("release", "live", "recipe", "run", "score")
    for r in found.to_json()["releases"]:
        shown.add_row(Text(r["id"]), ", ".join(r["pointers"]), Text(r["recipe"]), r["run"], _score(r))
    console().print(shown)


@command(
    "prune",
    "raypipe prune --store /data/store",
    "store",
    arg("--dry-run", "list what would be deleted"),
    arg("--abandon RUN ...", "give up unfinished work, by the name that a refused prune lists"),
    arg("--replies MODEL ...", "also delete the replies of a language model that nothing asks any more"),
    "json",
)
def _prune(args: Args) -> int:
    from raypipe.api.release import prune

    return printed(args, called(prune, args), _print_removed)


def _print_removed(found: PruneResult) -> None:
    for r in found.removed:
        print(f"{r.kind} {r.name}: {r.rows} rows")
    print(f"{len(found.removed)} things {'would be deleted' if found.dry_run else 'deleted'}")
