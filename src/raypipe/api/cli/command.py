"""How a command is declared, how it calls the Python API, and how it prints what that returns."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from raypipe.api.cli.arguments import SHARED, read_as
from raypipe.api.cli.commands import COMMANDS
from raypipe.core.terminal import open_console

if TYPE_CHECKING:
    from rich.console import Console

    from raypipe.api.results import Result
    from raypipe.api.session import Session

T = TypeVar("T")
R = TypeVar("R", bound="Result")
Args = argparse.Namespace
Commands = Any  # argparse's own class for sub-commands is private
PIPED_WIDTH = 10_000  # columns: no line of a table is as long


@dataclass(frozen=True, slots=True)
class Declared:
    """A command, as its module declares it."""

    words: str  # its name, such as `why` or `score crag`
    about: str  # "": as COMMANDS has it
    example: str  # a line to copy
    arguments: str  # as `take` reads them
    do: Callable[[Args], int]  # gives the exit code


def command(do: Callable[[Args], int]) -> Declared:
    """Makes a function a command. Its name has the words: `_score_crag`; two underscores are a dash. Its
    docstring says, of a command below another, what it does; then it has a line to copy, which begins with
    raypipe, and the arguments."""
    words = do.__name__.strip("_").replace("__", "-").replace("_", " ")
    about, example, arguments = _DECLARED.fullmatch(_unfolded(do.__doc__ or "")).groups("")  # type: ignore[union-attr]
    return Declared(words, about, example, arguments, do)


_DECLARED = re.compile(r"(?s)\A(?:([^\n]+)\n\n)?(raypipe [^\n]*+)\n?(.*)")


def _unfolded(text: str) -> str:
    """Lines that stand deeper go on the line before."""
    return re.sub(r"\n +", " ", inspect.cleandoc(text))


def add(commands: dict[str, Commands], declared: Declared, groups: Mapping[str, str]) -> None:
    """Adds a command to a parser. `commands`: words -> the commands below them; "": those of the top.
    `groups`: two words that have commands below them -> what these do."""
    above, _, name = declared.words.rpartition(" ")
    about = declared.about or COMMANDS[name].about
    made = below(commands, above, groups).add_parser(
        name,
        help=about,
        description=about,
        epilog=f"example:\n  {declared.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(do=declared.do, parser=made)
    take(made, declared.arguments)


def below(commands: dict[str, Commands], words: str, groups: Mapping[str, str]) -> Commands:
    """The commands below others, such as those of `score`, which are made where they are not there."""
    if words not in commands:
        above, _, name = words.rpartition(" ")
        about = COMMANDS[name].about if not above else groups[words]
        made = below(commands, above, groups).add_parser(name, help=about, description=about)
        commands[words] = made.add_subparsers(dest=words, metavar="COMMAND", required=True)
    return commands[words]


def take(made: Any, text: str) -> None:
    """Declares arguments: in each line one (`argument`), or names of SHARED; lines that stand deeper go on. A
    paragraph below a title with a colon is a group of the help; of `one of these:` exactly one is given."""
    for paragraph in _unfolded(text).split("\n\n"):
        lines, group = paragraph.splitlines(), made
        if lines[0] == "one of these:":
            group = made.add_mutually_exclusive_group(required=True)
        elif lines[0].endswith(":"):
            group = made.add_argument_group(lines[0].removesuffix(":"))
        for line in lines[group is not made :]:
            if SHARED.keys() >= set(line.split()):
                for name in line.split():
                    take(group, SHARED[name])
            else:
                name, more = argument(line)
                if name.startswith("-"):
                    more.setdefault("action", "extend" if more.get("nargs") == "+" else Once)
                group.add_argument(name, **more)


class Once(argparse.Action):
    """Stores the value of an option. A second one is an error, since the first would be lost."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Args, values: Any, option_string: str | None = None
    ) -> None:
        given: dict[str, Any] = vars(namespace).setdefault("_given", {})
        if self.dest in given:
            commas = ", with commas between" if "," in str(self.metavar) else ""
            said = f"expected once{commas}, found {given[self.dest]!s} and {values!s}"
            raise argparse.ArgumentError(self, said)
        given[self.dest] = values
        setattr(namespace, self.dest, values)


_WORDS = {"=": "default", "->": "dest", "const": "const"}


def argument(line: str) -> tuple[str, dict[str, Any]]:
    """The name or flag of an argument, and what else argparse takes of it, from `USAGE {KIND}: help`.

    The usage is the name or flag, then what stands for its value: `--port N`; `paths PATH+`, with +, * or ?
    as argparse has them; `--gate BOUND ...`, which may be repeated; a flag alone: `--json`. The kind has of
    these words: `required`, a type (`arguments.read_as`), `one|other` for choices, `= DEFAULT`,
    `const VALUE`, and `-> NAME`, its name in the Python API.

    >>> argument("--out FILE {= a.csv -> file}: the table")
    ('--out', {'help': 'the table', 'default': 'a.csv', 'dest': 'file', 'metavar': 'FILE'})
    """
    declared, _, help = line.partition(": ")
    usage, _, kind = declared.partition(" {")
    name, _, metavar = usage.partition(" ")
    found: dict[str, Any] = {"help": help or None}
    words = iter(kind.removesuffix("}").split())
    for word in words:
        if word == "required":
            found["required"] = True
        elif word in _WORDS:
            found[_WORDS[word]] = next(words).strip('"')
        elif "|" in word:
            found["choices"] = tuple(filter(None, word.split("|")))
        else:
            found["type"] = read_as(word)
    if "type" in found and "default" in found:
        found["default"] = found["type"](found["default"])
    if metavar.endswith(" ..."):
        metavar, found["action"], found["default"] = metavar.removesuffix(" ..."), "append", []
    elif metavar.endswith(("+", "*", "?")):
        metavar, found["nargs"] = metavar[:-1], metavar[-1]
        found.setdefault("default", [] if name.startswith("-") and found["nargs"] == "+" else None)
    if metavar:
        found["metavar"] = metavar
    elif name.startswith("-") and "choices" not in found:
        found["action"] = "store_true"
    return name, found


def called(function: Callable[..., T], args: Args, *first: Any, **more: Any) -> T:
    """Calls a function of the API with the arguments of the command that have the names of its own, and with
    `first` and `more`. Its session is that of the arguments; progress is shown where no JSON is printed."""
    taken = inspect.signature(function).parameters
    names = [n for n, p in taken.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if "options" in taken.keys() - names:
        from raypipe.evaluation.options import EvalOptions

        names += EvalOptions.__annotations__
    given = {n: vars(args)[n] for n in names if n in vars(args)}
    if "session" in names:
        given["session"] = session(args, progress=not getattr(args, "json", False))
    return function(*first, **{**given, **more})


def printed(args: Args, found: R, show: Callable[[R], object]) -> int:
    """Prints a result: with --json as one object, else as `show` does. Returns exit code 0."""
    if args.json:
        print_json(found.to_dict(), args)
    else:
        show(found)
    return 0


def on_console(show: str, *of: Any, **more: Any) -> None:
    """Calls MODULE.FUNCTION of the package `report`, which is imported now, with the console and what it
    prints."""
    module, _, name = show.partition(".")
    getattr(import_module(f"raypipe.evaluation.report.{module}"), name)(console(), *of, **more)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    on_console("console.show", heads, rows)


def folded(heads: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """A table whose cells are folded where the console is narrow."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, title=title)
    for name in heads:
        made.add_column(name, overflow="fold", justify="right" if name == "size" else "left")
    for row in rows:
        made.add_row(*row)
    console().print(made)


def print_json(value: Any, args: Args) -> None:
    """One line on stdout. NaN and infinity are refused: they are not JSON."""
    json.dump(value, args.stdout, ensure_ascii=False, allow_nan=False)
    args.stdout.write("\n")
    args.stdout.flush()


def say(line: object) -> None:
    """Prints a line on stderr at once."""
    print(line, file=sys.stderr, flush=True)


def console() -> Console:
    """The console on stdout. Lines that are piped are not folded; on a terminal they fit its width."""
    return open_console(sys.stdout, None if sys.stdout.isatty() else PIPED_WIDTH)


def session(args: Args, progress: bool = False) -> Session:
    from raypipe.api.session import Session

    said = {name: vars(args)[name] for name in ("models", "cluster", "llm") if name in vars(args)}
    sets = tuple(getattr(args, "sets", ()))
    return Session(args.settings, graphs=graphs(args), progress=progress, sets=sets, **said)


def take_docs(args: Args) -> None:
    """Puts the store of the folder that --docs names in the place of --store. What changed in the folder is
    read first for a command that runs a recipe; those that serve a folder open it themselves."""
    group = COMMANDS[args.command].group
    if getattr(args, "docs", None) is None or group == "serve":
        return
    from raypipe.api.data import documents_store, ingest_documents

    if group == "run" and args.command != "plan" and not getattr(args, "dry_run", False):
        args.store = called(ingest_documents, args, args.docs).store
    else:
        args.store = args.store or called(documents_store, args, args.docs)


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
