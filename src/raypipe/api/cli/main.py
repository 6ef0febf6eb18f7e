"""Command line: `raypipe COMMAND`. jobs/*.py are the same commands, for `ray job submit`.

`main` reads arguments and the environment, calls the Python API, and prints. Only the named command's module
is imported, and the API's libraries only when the command runs, so that help and errors in arguments appear
quickly. Exit codes: 0 fine, 2 usage, configuration, store state or full disk, 3 input data, 4 model missing,
5 cluster too small, 6 fault budget exceeded, 7 a gate or comparison failed, 8 a cap on calls, money or hours
reached, 69 a store, device or service unavailable or in use, 70 internal, 130 Ctrl-C, 143 stopped by SIGTERM.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import os
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import raypipe
from raypipe.api.cli.command import COMMANDS, GROUPS, Declared, Shell, add, run, say
from raypipe.api.session import from_environment
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, DiskFull, RaypipeError, is_full
from raypipe.core.terminal import shown_streams

ABOUT = "Answer datasets of questions on a Ray cluster, and single questions with the same logic."
START = {
    "raypipe eval": "answer and score 20 invented questions",
    'raypipe ask rag "QUESTION" --docs DIR': "answer from files of your own",
    "raypipe serve rag --docs DIR": "the same over HTTP, with a page",
    "raypipe plan local --set rerank.top=10": "what would this change cost?",
}
"""Four first commands for a newcomer, in order -> the purpose of each."""
WIDTH = 80


class _Parser(argparse.ArgumentParser):
    """Argument parser that suggests the closest right value for a wrong one."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            hint = did_you_mean(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"unknown value {value!r}; {hint}")

    def error(self, message: str) -> NoReturn:
        """Prints the error and an example, but not all options, and ends the process with code 2."""
        said = message.replace("the following arguments are required:", "missing:")
        lines = [f"{self.prog}: {said}", *filter(None, [self.epilog]), f"all options: {self.prog} --help"]
        print(*lines, sep="\n", file=sys.stderr)
        raise SystemExit(ConfError.exit_code)


def parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Builds the parser of the commands `names`, with all their options. By default it has all commands."""
    top = _Parser(prog="raypipe", description=ABOUT)
    commands = {"": top.add_subparsers(dest="command", metavar="COMMAND", required=True)}
    for module in dict.fromkeys(COMMANDS[name].module for name in names):
        declares = vars(importlib.import_module(module))
        for declared in declares.values():
            if isinstance(declared, Declared):
                add(commands, declared, declares.get("SUBCOMMANDS", {}))
    return top


def overview() -> str:
    """Returns the text of `raypipe --help`: where to start, then commands by group."""
    starts = [f"  {command:<40}{does}" for command, does in START.items()]
    lines = ["usage: raypipe COMMAND ...", "", *textwrap.wrap(ABOUT, WIDTH), "", "start here:", *starts]
    for group, does in GROUPS.items():
        lines += ["", f"{group}: {does}"]
        for name, command in COMMANDS.items():
            if command.group == group:
                lines += textwrap.wrap(
                    command.about, WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=" " * 14
                )
    lines += ["", "options:", "  --help      Print this.", "  --version   Print version and commit.", ""]
    return "\n".join([*lines, "raypipe COMMAND --help has an example for each."])


def read(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of one command. Ends the process with code 2 if they are wrong."""
    name = argv[0]
    if name not in COMMANDS:
        what = "option" if name.startswith("-") else "command"
        known = ("--help", "--version") if what == "option" else COMMANDS
        say(f"raypipe: unknown {what} {name!r}; {did_you_mean(name, known)}")
        raise SystemExit(ConfError.exit_code)
    args, rest = parser([name]).parse_known_args(argv)
    if rest:
        flag = next((x.partition("=")[0] for x in rest if x.startswith("-")), "")
        names = [name.lstrip("-") for name in args.parser._option_string_actions]  # dashes would look similar
        near = [repr(f"--{name}") for name in difflib.get_close_matches(flag.lstrip("-"), names)]
        if not flag and "data" in names:
            near = [f"--data {' '.join(rest)}"]
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        if not (flag or near) and args.parser._get_positional_actions():
            hint = "; arguments stand before options"
        args.parser.error(f"unexpected {' '.join(rest)}{hint}")
    return args


GC_ALLOCATIONS = 50_000
"""Objects created, less those deleted, between two garbage collections. With Python's own 700, collections
take .5 of the 4.1 CPU seconds of an `ask`: each visits all objects of the libraries."""


def main(argv: Sequence[str] | None = None, whole: bool | None = None) -> int:
    """Runs one command and returns its exit code. `argv` None means the arguments of the process. `whole`
    True means that the process runs only this command, and that the command's time counts from the process's
    start. `whole` None means True if `argv` is None. If the reader of the output closes it, returns 0."""
    try:
        try:
            own = argv is None if whole is None else whole
            if own:
                gc.set_threshold(GC_ALLOCATIONS)
            with shown_streams(keep=own):
                return _run(argv, own)
        finally:
            sys.stdout.flush()
            if own:
                gc.freeze()  # saves Python's two collections at exit: .7 s once torch is loaded
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python writes there again at exit
        return 0


def _run(argv: Sequence[str] | None, own: bool) -> int:
    began = time.perf_counter()
    if own:
        with suppress(OSError):  # not Linux: the start of the process is unknown
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            began -= time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return 0
    if argv[0] == "--version":
        from raypipe.core.environment import commit  # its import takes 20 ms

        print(f"raypipe {raypipe.__version__} ({commit() or 'commit not known'})")
        return 0
    args = read(argv)
    signal.signal(signal.SIGTERM, _stop)
    if (here := os.getcwd()) not in sys.path:  # the user's own steps, readers, metrics and loaders
        sys.path.append(here)
    try:
        settings = from_environment()
        if COMMANDS[args.command].group in ("run", "serve") and "recipe" in args:
            named = args.recipe or ", ".join(getattr(args, "recipes", None) or ())
            say(f"raypipe {args.command}: opening {named}")  # the imports that follow take a second or two
        json, stdout = getattr(args, "json", False), sys.stdout
        if json:  # stdout gets the JSON only; output of libraries, such as Ray's, goes to stderr
            sys.stdout = sys.stderr
        try:
            return run(args.declared, vars(args), Shell(settings, json, stdout, began))
        finally:
            if not own:  # a process of one command ends here, and Ray prints until its end
                sys.stdout = stdout
    except RaypipeError as e:
        say(f"raypipe {args.command}: {e}")
        return e.exit_code
    except (KeyboardInterrupt, SystemExit) as e:
        if isinstance(e, SystemExit) and e.code != _STOPPED:
            raise
        keeps = args.declared.keeps and not getattr(args, "dry_run", False)
        kept = "; finished parts are kept, run it again to continue" if keeps else ""
        say(f"raypipe {args.command}: stopped{kept}")
        return _STOPPED if isinstance(e, SystemExit) else 130
    except BrokenPipeError:
        raise  # `main` handles it
    except Exception as e:
        if is_full(e):
            kept = "What was stored before stays readable; free some space and run it again to continue"
            say(f"raypipe {args.command}: the disk is full. {kept}: {e}")
            return DiskFull.exit_code
        traceback.print_exception(e)
        say(f"raypipe {args.command}: this is a defect in raypipe; the trace above says where")
        return 70


_STOPPED = 128 + signal.SIGTERM  # exit code


def _stop(number: int, frame: FrameType | None) -> None:
    """Raises SystemExit at SIGTERM, so that files and Ray are closed. Finished parts of the work are kept."""
    raise SystemExit(_STOPPED)


if __name__ == "__main__":
    sys.exit(main())
