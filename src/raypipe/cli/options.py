"""What the commands share: arguments that mean the same everywhere, and how a command is declared."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raypipe.cli.settings import Settings
from raypipe.core.errors import ConfError
from raypipe.core.records import digest
from raypipe.readers import Format
from raypipe.readers.object_store import fetched, is_remote, sent
from raypipe.runs.manifest import NAME as MANIFEST

Commands = Any  # argparse's own class for sub-commands is private
Run = Callable[[argparse.Namespace, Settings], int]


def command(commands: Commands, name: str, about: str, example: str, run: Run) -> argparse.ArgumentParser:
    """Declares one command: a line about it, and an example to copy."""
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(run=run)
    return made


def store(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--store",
        metavar="URI",
        help="the store (default: $RAYPIPE_STORE, else stores/default under $RAYPIPE_HOME)",
    )


def recipe(made: argparse.ArgumentParser, optional: bool = False, live: bool = False) -> None:
    about = "a name under conf/recipes, or a path"
    if live:
        about += "; live: the released one"
    if optional:
        made.add_argument("recipe", metavar="RECIPE", nargs="?", default="local", help=f"{about} (local)")
    else:
        made.add_argument("recipe", metavar="RECIPE", help=about)
    made.add_argument("--models", metavar="FILE", help="models file in place of conf/models.yaml")
    made.add_argument(
        "--graph",
        metavar="[NAME=]WHERE",
        action="append",
        default=[],
        help="where the recipe's knowledge graphs and public data lie: folders, files or addresses; with no "
        "NAME all of them (default: as conf/graphs.yaml says, else the folder kg in the data)",
    )


def graphs_of(args: argparse.Namespace) -> dict[str, str]:
    """Name -> place, as --graph says it, and under "" the place of all others."""
    found: dict[str, str] = {}
    for path in getattr(args, "data", []):
        if (tables := Path(path) / "kg").is_dir():
            found.setdefault("", str(tables))
    for given in args.graph:
        name, sign, place = given.partition("=")
        found[name if sign and "/" not in name else ""] = place if sign and "/" not in name else given
    return found


def inputs(given: Sequence[str | Path], settings: Settings) -> list[Path]:
    """The files and folders of --data, absolute; those of an object store as copies under $RAYPIPE_HOME."""
    cache = settings.home / "fetched"
    places = [settings.place(str(p), "--data") for p in given]
    return [fetched(p, cache) if is_remote(p) else Path(p) for p in places]


def output(given: str, settings: Settings) -> Path:
    """The folder of --out, absolute; for one of an object store a folder under $RAYPIPE_HOME, which
    `delivered` takes there."""
    place = settings.place(given, "--out")
    return settings.home / "sent" / digest(place)[:16] if is_remote(place) else Path(place)


def writable(folder: Path, name: str) -> None:
    """Raises ConfError where the folder that the argument `name` says is to be written to cannot be made or
    written, before any work for it starts. Makes nothing."""
    there = next(f for f in (folder.absolute(), *folder.absolute().parents) if f.exists())
    if not there.is_dir():
        raise ConfError(f"{name}: {folder} cannot be written: {there} is a file. Name another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfError(f"{name}: {folder} cannot be written: {there} may not be. Name another place")


def delivered(given: str | None, folder: Path) -> None:
    """Copies a finished run's folder to the object store that --out named, its manifest last."""
    if given and is_remote(given):
        sent(folder, given, last=[MANIFEST])
        print(f"sent to {given}", file=sys.stderr)


def cluster(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--cluster",
        metavar="NAME",
        default="laptop",
        help="a name under conf/clusters, or a path (default: laptop)",
    )


def fresh(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--fresh",
        action="store_true",
        help="answer again, and ask language models what they were asked before",
    )


def retry(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--retry-faults", action="store_true", help="try again what was given up (`raypipe faults DIR`)"
    )


def refresh(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--refresh",
        action="store_true",
        help="answer again what rests on replies of a knowledge graph that no longer hold (graphs.yaml)",
    )


def format_of(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--format",
        choices=("crag", "beir", "synth"),
        help="of the data (default: synth for a folder that `raypipe synth` wrote, else crag)",
    )


def format_for(given: Format | None, paths: Sequence[Path]) -> Format:
    """The format as given, else what the paths look like."""
    if given is not None:
        return given
    return "synth" if paths and all((p / "synth.json").is_file() for p in paths) else "crag"


def at_least(least: int) -> Callable[[str], int]:
    """An argument type: a whole number that is not smaller."""

    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, found {value}")
        return value

    read.__name__ = "whole number"
    return read


def as_json(made: argparse.ArgumentParser, lines: bool = False) -> None:
    what = "one JSON object a line" if lines else "one JSON object"
    made.add_argument("--json", action="store_true", help=f"{what} on stdout and nothing else")


def print_json(value: Any) -> None:
    """One line on stdout. NaN and infinity are refused: they are not JSON."""
    json.dump(value, sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()
