"""How a command is declared, how it calls the Python API, and how it prints what that returns."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from raypipe.cli.commands import COMMANDS, SUBCOMMANDS
from raypipe.core.config import did_you_mean
from raypipe.core.plugins import is_path

if TYPE_CHECKING:
    from rich.console import Console

    from raypipe.api.results import Result
    from raypipe.api.session import Session

T = TypeVar("T")
R = TypeVar("R", bound="Result")
Args = argparse.Namespace
Commands = Any  # argparse's own class for sub-commands is private
Argument = tuple[str, Mapping[str, Any]]  # a name or flag, and what else argparse takes of it
PIPED_WIDTH = 10_000  # columns: no line of a table is as long


def arg(usage: str, help: str | None = None, type: Any = None, default: Any = None, **more: Any) -> Argument:
    """One argument. `usage` is its name or flag, then what stands for its value: `--port N`; `paths PATH+`,
    with +, * or ? as argparse has them; `--gate BOUND ...`, which may be repeated; a flag alone: `--json`."""
    name, _, metavar = usage.partition(" ")
    found: dict[str, Any] = {"help": help, **more}
    if not metavar and name.startswith("-") and "choices" not in more:
        return name, {**found, "action": "store_true"}
    if metavar.endswith(" ..."):
        metavar, default, found["action"] = metavar.removesuffix(" ..."), [], "append"
    elif metavar.endswith(("+", "*", "?")):
        metavar, found["nargs"] = metavar[:-1], metavar[-1]
    if metavar:
        found["metavar"] = metavar
    return name, {**found, "type": type, "default": default}


@dataclass(frozen=True, slots=True)
class ArgumentGroup:
    """Arguments under a title of their own in the help; with none, exactly one of them is given."""

    title: str
    arguments: tuple[Argument, ...]


def one_of_these(*arguments: Argument) -> ArgumentGroup:
    """Arguments of which exactly one is given."""
    return ArgumentGroup("", arguments)


@dataclass(frozen=True, slots=True)
class Declared:
    """A command, as its module declares it."""

    words: str  # its name, such as `why` or `score crag`
    example: str  # a line to copy
    arguments: tuple[str | Argument | ArgumentGroup, ...]  # a text: names of SHARED
    about: str  # "": as COMMANDS has it
    do: Callable[[Args], int]  # gives the exit code


def command(
    words: str, example: str, *arguments: str | Argument | ArgumentGroup, about: str = ""
) -> Callable[[Callable[[Args], int]], Declared]:
    """Makes a function the command of these words."""
    return lambda do: Declared(words, example, arguments, about, do)


def add(commands: dict[str, Commands], declared: Declared) -> None:
    """Adds a command to a parser. `commands`: words -> the commands below them; "": those of the top."""
    above, _, name = declared.words.rpartition(" ")
    about = declared.about or COMMANDS[name].about
    made = below(commands, above).add_parser(
        name,
        help=about,
        description=about,
        epilog=f"example:\n  {declared.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(do=declared.do, parser=made)
    take(made, declared.arguments)


def below(commands: dict[str, Commands], words: str) -> Commands:
    """The commands below others, such as those of `score`, which are made where they are not there."""
    if words not in commands:
        above, _, name = words.rpartition(" ")
        about = COMMANDS[name].about if not above else SUBCOMMANDS[words]
        made = below(commands, above).add_parser(name, help=about, description=about)
        commands[words] = made.add_subparsers(dest=words, metavar="COMMAND", required=True)
    return commands[words]


def take(made: Any, arguments: Iterable[str | Argument | ArgumentGroup]) -> None:
    """Declares arguments."""
    from raypipe.cli.options import SHARED

    for given in arguments:
        if isinstance(given, ArgumentGroup):
            titled = made.add_argument_group(given.title) if given.title else None
            take(titled or made.add_mutually_exclusive_group(required=True), given.arguments)
        else:
            own = [x for n in given.split() for x in SHARED[n]] if isinstance(given, str) else [given]
            for name, more in own:
                made.add_argument(name, **more)


def called(function: Callable[..., T], args: Args, *first: Any, **more: Any) -> T:
    """Calls a function of the API with the arguments of the command that have the names of its own, and with
    `first` and `more`. Its session is that of the arguments; progress is shown where no JSON is printed."""
    taken = inspect.signature(function).parameters
    names = [n for n, p in taken.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if "options" in taken.keys() - names:
        from raypipe.api.run import EvalOptions

        names += EvalOptions.__annotations__
    given = {n: vars(args)[n] for n in names if n in vars(args)}
    if "session" in names:
        given["session"] = session(args, progress=not getattr(args, "json", False))
    return function(*first, **{**given, **more})


def printed(args: Args, found: R, show: Callable[[R], object]) -> int:
    """Prints a result: with --json as one object, else as `show` does. Returns exit code 0."""
    if args.json:
        print_json(found.to_json())
    else:
        show(found)
    return 0


def on_console(show: Callable[..., object], **more: Any) -> Callable[[Result], object]:
    """For `printed`: writes to the console what is printed as JSON."""
    return lambda found: show(console(), found.to_json(), **more)


def print_json(value: Any) -> None:
    """One line on stdout. NaN and infinity are refused: they are not JSON."""
    json.dump(value, sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def say(line: object) -> None:
    """Prints a line on stderr at once."""
    print(line, file=sys.stderr, flush=True)


def console() -> Console:
    """The console on stdout. Lines that are piped are not folded; on a terminal they fit its width."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)


def session(args: Args, progress: bool = False) -> Session:
    """The session that the arguments of a command say."""
    from raypipe.api.session import Session

    said = {name: vars(args)[name] for name in ("models", "cluster", "llm") if name in vars(args)}
    sets = tuple(getattr(args, "sets", ()))
    return Session(args.settings, graphs=graphs(args), progress=progress, sets=sets, **said)


def graphs(args: Args) -> dict[str, str]:
    """Graph -> place, as --graph says it; "": all others."""
    found: dict[str, str] = {}
    for given in getattr(args, "graphs", []):
        name, sign, place = given.partition("=")
        found[name if sign and "/" not in name else ""] = place if sign and "/" not in name else given
    return found


def say_data(args: Args) -> None:
    """Says on stderr which questions are taken where --data is missing."""
    if not args.data:
        say(f"no --data: the questions in {args.settings.store_to_use(args.store)}")


def one_of(*shipped: str) -> Callable[[str], str]:
    """An argument type: one of these names, or the path of code from outside, MODULE:NAME."""

    def read(text: str) -> str:
        if text in shipped or is_path(text):
            return text
        hint = did_you_mean(text, shipped)
        raise argparse.ArgumentTypeError(f"unknown value {text!r}; {hint}, or MODULE:NAME of your own")

    return read


def _number(kind: type[T], fits: Callable[[T], bool], said: str, name: str) -> Callable[[str], T]:
    """An argument type: numbers of a kind that fit. `name`: as argparse calls one that cannot be read."""

    def read(text: str) -> T:
        value = kind(text)  # type: ignore[call-arg]
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {said}, found {text.strip()}")
        return value

    read.__name__ = name
    return read


def at_least(least: int) -> Callable[[str], int]:
    """An argument type: a whole number that is not smaller."""
    return _number(int, lambda n: n >= least, f"at least {least}", "whole number")


def between(least: int, most: int) -> Callable[[str], int]:
    """An argument type: a whole number from `least` to `most`."""
    return _number(int, lambda n: least <= n <= most, f"{least} to {most}", "whole number")


above_0 = _number(float, lambda x: 0 < x < math.inf, "a number above 0", "above_0")
share = _number(float, lambda x: 0 < x <= 1, "a share above 0 and at most 1", "share")
share_or_0 = _number(float, lambda x: 0 <= x <= 1, "a share from 0 to 1", "share from 0 to 1")


def names(text: str) -> list[str]:
    """An argument type: names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]
