"""The command line: `raypipe COMMAND`. jobs/*.py are the same commands behind `ray job submit`.

Reads arguments and the environment, calls the functions that do the work, prints. Exit codes: 0 fine, 2 usage
or configuration, 3 input data, 4 model missing, 5 cluster too small, 6 fault budget exceeded, 7 quality gate
failed, 70 internal, 130 Ctrl-C, 143 stopped by SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from raypipe.cli import (
    ask,
    data,
    doctor,
    facts,
    faults,
    kg,
    models,
    plans,
    rank,
    releases,
    runs,
    scores,
    serve,
    steps,
)  # fmt: skip
from raypipe.cli.settings import from_environment
from raypipe.core.errors import RaypipeError
from raypipe.store.disk_space import DiskFull, is_full


def parser() -> argparse.ArgumentParser:
    """Every command with its options."""
    top = argparse.ArgumentParser(
        prog="raypipe",
        description="Answers datasets of questions on a Ray cluster, and one question with the same logic.",
        epilog="raypipe COMMAND --help has an example for each. Start with: raypipe doctor",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for group in (
        doctor, data, plans, runs, faults, releases, ask, rank, kg, facts, scores, models, steps, serve,
    ):  # fmt: skip
        group.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)
    if (here := str(Path.cwd())) not in sys.path:  # the user's own steps, readers, metrics and loaders
        sys.path.append(here)
    try:
        code: int = args.run(args, from_environment(os.environ, Path.cwd()))
        return code
    except RaypipeError as e:
        print(f"raypipe {args.command}: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print(
            f"raypipe {args.command}: stopped; whole parts are kept, run it again to go on", file=sys.stderr
        )
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as e:
        if is_full(e):
            print(f"raypipe {args.command}: {_FULL}: {e}", file=sys.stderr)
            return DiskFull.exit_code
        traceback.print_exc()
        print(
            f"raypipe {args.command}: this is a defect in raypipe; the trace above says where",
            file=sys.stderr,
        )
        return 70


_FULL = "the disk is full. What was stored before stays readable; free some room and run it again to go on"


def _stop(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the run as an exception, so that files close and Ray is left; whole parts stay."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
