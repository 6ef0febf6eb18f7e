"""Commands that decide what answers live questions: promote, rollback, releases, prune."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from raypipe.cli import options
from raypipe.cli.settings import Settings
from raypipe.report.console import grid
from raypipe.runs.manifest import read
from raypipe.runs.prune import prune
from raypipe.runs.release import Release, gate, live, promote, releases, rollback, summary
from raypipe.store import Store


def add(commands: options.Commands) -> None:
    """Declares them."""
    made = options.command(
        commands,
        "promote",
        "let a finished run answer live questions from now on, if it is good enough",
        "raypipe promote /data/runs/local --gate 'score>=0.1' --gate 'hallucination<=0.3'",
        _promote,
    )
    made.add_argument("run_folder", metavar="DIR", type=Path, help="the --out folder of a finished eval")
    made.add_argument(
        "--gate", metavar="BOUND", action="append", default=[], help="a bound on a number of the run"
    )
    options.as_json(made)
    for name, about, run in (
        ("rollback", "let the release before the live one answer again", _rollback),
        ("releases", "list the releases of a store", _releases),
        ("prune", "remove what no release, recipe or citation names any more", _prune),
    ):
        made = options.command(commands, name, about, f"raypipe {name} --store /data/store", run)
        options.store(made)
        if name == "prune":
            made.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
        options.as_json(made)


def _store(args: argparse.Namespace, settings: Settings) -> Store:
    return Store.open(settings.store_to_use(args.store))


def _promote(args: argparse.Namespace, settings: Settings) -> int:
    manifest = read(args.run_folder)
    gates = [gate(text) for text in args.gate]
    return _said(args, promote(Store.open(manifest.store), manifest, gates))


def _rollback(args: argparse.Namespace, settings: Settings) -> int:
    return _said(args, rollback(_store(args, settings)))


def _said(args: argparse.Namespace, release: Release) -> int:
    if args.json:
        options.print_json(summary(release, release.id))
    else:
        print(f"live: {release.id}, recipe {release.name}, run {release.run}")
    return 0


def _releases(args: argparse.Namespace, settings: Settings) -> int:
    store = _store(args, settings)
    now = live(store)
    found = [summary(r, now.id if now else "") for r in releases(store)]
    if args.json:
        options.print_json({"releases": found})
        return 0
    shown = grid("release", "live", "recipe", "run", "score")
    for r in found:
        score = "not scored" if r["score"] is None else f"{r['score']:+.3f}"
        shown.add_row(Text(r["id"]), "live" if r["live"] else "", Text(r["recipe"]), r["run"], score)
    Console().print(shown)
    return 0


def _prune(args: argparse.Namespace, settings: Settings) -> int:
    found = prune(_store(args, settings), args.dry_run)
    if args.json:
        options.print_json({"dry_run": args.dry_run, "removed": [asdict(r) for r in found]})
        return 0
    for r in found:
        print(f"{r.kind} {r.name}: {r.rows} rows")
    print(f"{len(found)} things {'would go' if args.dry_run else 'are gone'}")
    return 0
