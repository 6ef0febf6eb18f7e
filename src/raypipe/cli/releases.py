"""Commands that decide what answers live questions: promote, rollback, releases, prune."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.release import ReleaseResult


def add(commands: options.Commands) -> None:
    """Declares `promote`, `rollback`, `releases` and `prune`."""
    made = options.command(
        commands,
        "promote",
        "raypipe promote /data/runs/local --gate 'score>=0.1' --gate 'hallucination<=0.3'",
        _promote,
    )
    made.add_argument("run_folder", metavar="DIR", help="the --out folder of a finished eval")
    made.add_argument(
        "--gate",
        metavar="BOUND",
        action="append",
        default=[],
        help="a bound on a number of the run, or a bound on its difference from the live release: better, "
        "not-worse, or not-worse:M",
    )
    made.add_argument(
        "--against", metavar="DIR", help="the run to compare with, in place of the live release's"
    )
    made.add_argument(
        "--min-scored",
        metavar="SHARE",
        type=_share,
        help="a gate on a share, such as score, needs this share of the questions scored (default: 0.95)",
    )
    made.add_argument(
        "--canary",
        metavar="SHARE",
        type=options.share,
        help="have the run answer this share of the live questions first; a gate better, not-worse or "
        "not-worse:M makes it live or rolls it back",
    )
    _pointer(made)
    made.add_argument("--store", metavar="URI", help="where the run's store is now (default: where it was)")
    options.as_json(made)
    for name, run in (("rollback", _rollback), ("releases", _releases), ("prune", _prune)):
        made = options.command(commands, name, f"raypipe {name} --store /data/store", run)
        options.store(made)
        if name == "rollback":
            _pointer(made)
        if name == "prune":
            made.add_argument("--dry-run", action="store_true", help="list what would be deleted")
            made.add_argument(
                "--abandon",
                metavar="RUN",
                action="append",
                default=[],
                help="give up unfinished work, by the name that a refused prune lists",
            )
            made.add_argument(
                "--replies",
                metavar="MODEL",
                action="append",
                default=[],
                help="also delete the replies of a language model that nothing asks any more",
            )
        options.as_json(made)


def _pointer(made: argparse.ArgumentParser) -> None:
    """--as."""
    made.add_argument(
        "--as",
        dest="pointer",
        metavar="POINTER",
        default="live",
        help="live, or live@NAME, which tenants are given by the file of `serve --tenants` (default: live)",
    )


def _promote(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.release import promote

    session = options.session(args, settings)
    if args.canary is not None:
        from raypipe.api.trials import start_canary
        from raypipe.cli.trial import print_trials

        if args.pointer != "live":
            raise ConfError("--canary tries a run next to `live`: expected no --as with it")
        if args.against is not None:
            raise ConfError("--canary holds the run against the live release: expected no --against with it")
        found = start_canary(args.run_folder, args.canary, args.gate, args.store, args.min_scored, session)
        print_trials(args, found)
        return 0
    made = promote(
        args.run_folder, args.gate, args.store, args.min_scored, session, args.against, args.pointer
    )
    return _print(args, made)


def _rollback(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.release import rollback

    return _print(args, rollback(args.store, options.session(args, settings), args.pointer))


def _print(args: argparse.Namespace, found: ReleaseResult) -> int:
    from raypipe.runs.gates import seen_by_a_fit

    if args.json:
        options.print_json(found.to_json())
    else:
        made = found.release
        score = _score(found.to_json())
        seen = seen_by_a_fit(made.seen)
        print(
            f"{found.pointer} in {found.store}: {made.id}, recipe {made.name}, run {made.run}, {score}{seen}"
        )
    return 0


def _score(row: Mapping[str, Any]) -> str:
    """The measures of a release, and how many questions each rests on."""
    said = []
    if row["score"] is not None:
        said.append(f"{row['score']:+.3f} on {row['scored']} of {row['questions']}")
    lead = row["measure"]
    if lead is not None and lead["name"] != "score" and lead["mean"] is not None:
        said.append(f"{lead['name']} {lead['mean']:.3f} on {lead['scored']} of {lead['of']}")
    return ", ".join(said) or "not scored"


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, found {text}")
    return value


_share.__name__ = "share from 0 to 1"


def _releases(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.release import releases

    found = releases(args.store, options.session(args, settings))
    if args.json:
        options.print_json(found.to_json())
        return 0
    from rich.text import Text

    from raypipe.report.console import grid

    shown = grid("release", "live", "recipe", "run", "score")
    for r in found.to_json()["releases"]:
        shown.add_row(Text(r["id"]), ", ".join(r["pointers"]), Text(r["recipe"]), r["run"], _score(r))
    options.console().print(shown)
    return 0


def _prune(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.release import prune

    found = prune(args.store, args.dry_run, args.abandon, args.replies, options.session(args, settings))
    if args.json:
        options.print_json(found.to_json())
        return 0
    for r in found.removed:
        print(f"{r.kind} {r.name}: {r.rows} rows")
    print(f"{len(found.removed)} things {'would be deleted' if args.dry_run else 'deleted'}")
    return 0
