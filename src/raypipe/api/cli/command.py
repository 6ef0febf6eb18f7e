"""Declaration of commands. A command is a function, and argparse gets its arguments from the function's
signature. COMMANDS lists names, groups, help lines and modules; a command's module is imported when it runs.

Keyword-only parameters are options, all others are positional. Each has a type, and an `arg` as its default:
`out: str | None = arg("the table", "FILE")`. A parameter whose type is a dataclass is a group of options. A
Session parameter receives a session with the options that the parameter's default lists. A Shell parameter
receives the parts of the process that a command may use.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Literal, TextIO, TypeVar, get_args, get_origin, get_type_hints

from raypipe.api.session import Session, Settings
from raypipe.core.plugins import Command, Registry
from raypipe.core.terminal import open_console

if TYPE_CHECKING:
    from rich.console import Console

    from raypipe.api.results import Result


R = TypeVar("R", bound="Result")
Commands = Any  # argparse's own class for sub-commands is private
PIPED_WIDTH = 10_000  # columns: longer than any line of a table


@dataclass(frozen=True, slots=True)
class Arg:
    """Declaration of an argument, without its type."""

    help: str
    value: str | None = None  # name of the value in the help; None: its choices
    read: Callable[[str], Any] | None = None  # converts the text to a value; None: the type does
    default: Any = None
    needed: bool = False
    flag: str = ""  # flag of an option; "": made from the parameter's name
    const: str | None = None  # value of an option given without a value; None: a value is required
    each: bool = False  # True: an option of several values takes one at a time, and may be repeated


arg: Callable[..., Any] = Arg  # written as the default of a parameter, so of any type


@dataclass(frozen=True, slots=True)
class Shell:
    """Parts of the process that a command may use: settings, output, and the time of its start."""

    settings: Settings
    json: bool  # --json: stdout gets JSON only
    stdout: TextIO
    began: float  # start of the command, by perf_counter

    def session(
        self,
        models: str | None = None,
        cluster: str = "laptop",
        llm: str | None = None,
        graphs: Iterable[tuple[str, str]] = (),
        sets: Iterable[str] = (),
    ) -> Session:
        """Returns a session with these options. It shows progress unless JSON is printed."""
        return Session(self.settings, models, dict(graphs), cluster, not self.json, llm, tuple(sets))

    def print_json(self, value: Any) -> None:
        """Prints a value as one line of JSON on stdout. Raises ValueError for NaN and infinity."""
        json.dump(value, self.stdout, ensure_ascii=False, allow_nan=False)
        self.stdout.write("\n")
        self.stdout.flush()


@dataclass(frozen=True, slots=True)
class Shown(Generic[R]):
    """Result of a command, and how to print it. Such a command has --json, which prints one object."""

    result: R
    show: Callable[[R], object]  # prints the result for a person
    code: int = 0  # the exit code
    after: Callable[[], object] = lambda: None  # called after printing; may raise


@dataclass(frozen=True, slots=True)
class Declared:
    """A command, as its module declares it."""

    words: str  # name of the command, such as `plan` or `score crag`
    example: str  # a line to copy
    do: Callable[..., Shown[Any] | int]  # an int is the exit code
    keeps: bool  # True: if it is stopped, its finished parts are kept, and the next call continues

    @property
    def about(self) -> str:
        """Description of the command: the docstring of its function, or else its help line in COMMANDS."""
        return " ".join((inspect.getdoc(self.do) or "").split()) or COMMANDS[self.words].about


def command(
    words: str, example: str, keeps: bool = False
) -> Callable[[Callable[..., Shown[Any] | int]], Declared]:
    """Declares a function as the command `words`, such as `score crag`. `example` has arguments for these
    words, as the help shows them. The function's docstring is the help of a command of two words. `keeps` is
    as in `Declared`."""
    return lambda do: Declared(words, f"raypipe {words} {example}", do, keeps)


def add(commands: dict[str, Commands], declared: Declared, groups: Mapping[str, str]) -> None:
    """Adds a command to the parser. `commands` maps the words of a command to argparse's object for its
    subcommands; "" is the top. `groups` has the help of subcommands with subcommands of their own."""
    above, _, name = declared.words.rpartition(" ")
    about, layout = declared.about, argparse.RawDescriptionHelpFormatter
    shown = {"help": about, "description": about, "epilog": f"example:\n  {declared.example}"}
    made = below(commands, above, groups).add_parser(name, formatter_class=layout, **shown)
    made.set_defaults(declared=declared, parser=made)
    for parameter in parameters(declared.do):
        parameter.add_to(made)


def below(commands: dict[str, Commands], words: str, groups: Mapping[str, str]) -> Commands:
    """Returns argparse's object for the subcommands of a command, such as `score`. Creates it if missing."""
    if words not in commands:
        above, _, name = words.rpartition(" ")
        about = COMMANDS[name].about if not above else groups[words]
        made = below(commands, above, groups).add_parser(name, help=about, description=about)
        commands[words] = made.add_subparsers(dest=words, metavar="COMMAND", required=True)
    return commands[words]


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of a command, as its function's signature declares it."""

    name: str
    hint: Any
    arg: Arg
    option: bool

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Adds the argument to a parser."""
        arg, many = self.arg, get_origin(self.hint) is Sequence
        inner = [k for k in get_args(self.hint) if k is not NoneType]
        kind = inner[0] if many or NoneType in get_args(self.hint) else self.hint
        more: dict[str, Any] = {"help": arg.help, "default": argparse.SUPPRESS if many else self.default}
        if get_origin(kind) is Literal:
            more |= {"metavar": arg.value, "choices": get_args(kind)}
        elif kind is not bool:
            typed = arg.read or (kind if kind in (int, float, Path) else None)
            more |= {"metavar": arg.value, "type": typed}
        if not self.option:
            nargs = ("+" if arg.needed else "*") if many else None if arg.needed else "?"
            parser.add_argument(self.name, nargs=nargs, **more)
            return
        if kind is bool:
            more["action"] = "store_true"
        elif many and not arg.each:
            more |= {"action": "extend", "nargs": "+"}
        else:
            more["action"] = "append" if many else Once
        if arg.const is not None:
            more |= {"nargs": "?", "const": arg.const}
        flag = arg.flag or f"--{self.name.replace('_', '-')}"
        parser.add_argument(flag, dest=self.name, required=arg.needed, **more)

    @property
    def default(self) -> Any:
        """Value of the argument if it is not given."""
        if self.arg.default is None and self.hint is bool:
            return False
        return () if self.arg.default is None and get_origin(self.hint) is Sequence else self.arg.default


JSON: Any = arg("print one JSON object on stdout and nothing else")


@functools.cache
def parameters(do: Callable[..., Any]) -> Sequence[Parameter]:
    """Returns the arguments of a command, in the order of its function's signature."""
    hints, found = get_type_hints(do), list[Parameter]()
    for name, p in inspect.signature(do).parameters.items():
        if hints[name] in (Shell, Session):
            found += () if p.default is p.empty else p.default
        elif is_dataclass(hints[name]):
            of = get_type_hints(hints[name])
            defaults: dict[str, Any] = {f.name: f.default for f in fields(hints[name])}
            found += [Parameter(option, of[option], default, True) for option, default in defaults.items()]
        else:
            found.append(Parameter(name, hints[name], p.default, p.kind is p.KEYWORD_ONLY))
    if any(get_origin(r) is Shown for r in (hints["return"], *get_args(hints["return"]))):
        found.append(Parameter("json", bool, JSON, True))
    return found


def run(declared: Declared, given: Mapping[str, Any], shell: Shell) -> int:
    """Calls a command with the given arguments, and prints its result. Returns the exit code."""
    values = {p.name: given.get(p.name, p.default) for p in parameters(declared.do)}
    taken, hints = dict[str, Any](), get_type_hints(declared.do)
    for name, p in inspect.signature(declared.do).parameters.items():
        hint = hints[name]
        if hint is Shell:
            taken[name] = shell
        elif hint is Session:
            options = () if p.default is p.empty else p.default
            taken[name] = shell.session(**{option.name: values[option.name] for option in options})
        elif is_dataclass(hint) and isinstance(hint, type):
            taken[name] = hint(**{f.name: values[f.name] for f in fields(hint)})
        else:
            taken[name] = values[name]
    found = declared.do(**taken)
    if isinstance(found, int):
        return found
    if shell.json:
        shell.print_json(found.result.to_dict())
    else:
        found.show(found.result)
    found.after()
    return found.code


class Once(argparse.Action):
    """Action that stores an option's value. A second value is an error, since it would replace the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given: dict[str, Any] = vars(namespace).setdefault("_given", {})
        if self.dest in given:
            commas = ", with commas between" if "," in str(self.metavar) else ""
            both = f"{given[self.dest]!s} and {values!s}"
            raise argparse.ArgumentError(self, f"expected once{commas}, found {both}")
        given[self.dest] = values
        setattr(namespace, self.dest, values)


def on_console(show: str, *of: Any) -> None:
    """Imports `show`, a MODULE.FUNCTION of the package `report`, and calls it with the console and `of`."""
    module, _, name = show.partition(".")
    getattr(import_module(f"raypipe.evaluation.report.{module}"), name)(console(), *of)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    on_console("console.show", heads, rows)


def folded(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a table. If the console is narrow, long cells continue on the next line."""
    from rich.table import Table  # for commands that print one

    made = Table(box=None, pad_edge=False)
    for name in heads:
        made.add_column(name, overflow="fold", justify="right" if name == "size" else "left")
    for row in rows:
        made.add_row(*row)
    console().print(made)


def say(line: object) -> None:
    """Prints a line on stderr immediately."""
    print(line, file=sys.stderr, flush=True)


def console() -> Console:
    """Opens the console on stdout. Lines fit the width of a terminal; lines of a pipe are not folded."""
    return open_console(sys.stdout, None if sys.stdout.isatty() else PIPED_WIDTH)


GROUPS: Mapping[str, str] = {
    "data": "make, fetch and read data",
    "run": "run a recipe over a store",
    "look": "see what ran, and how good it was",
    "release": "decide what answers live questions",
    "serve": "answer single questions",
    "tools": "this machine, models, graphs, files",
}
"""Group -> purpose of its commands, in the order of `raypipe --help`."""

_OWN = {
    ("data", "data"): {
        "download": "Download the official CRAG or QASPER files: resumable, checked by digest.",
        "ingest": "Read files into a store, each line once; the same bytes again change nothing.",
        "questions": "Make test questions from documents of your own, for a person to review.",
        "examples": "Write a pool of training questions that prompts show as examples.",
        "parse": "Convert HTML files to text, as the pipeline does.",
    },
    ("run", "runs"): {
        "plan": "Estimate the model calls, time and memory of an eval, with the reason for each.",
        "eval": "Run what is missing, score it, and write a report; without arguments, the demo.",
        "rank": "Rank documents for queries and write a TREC run.",
        "sweep": "Evaluate recipes, or one at several values of its fields, and compare them in one table.",
        "fit": "Fit numbers of a recipe to one half of a run, and report on the other half.",
    },
    ("look", "finished_runs"): {
        "inspect": "Show a finished eval, one of its rows, failed rows, or where wrong answers were lost.",
        "view": "Show runs in a browser: each question with its evidence; two runs side by side.",
        "export": "Write a run's results as predictions, a CRAG submission or a TREC run.",
        "reproduce": "Hold a run against its expected numbers: OK, OKish or FAIL.",
    },
    ("look", "scores"): {
        "compare": "Compare scored runs over the same questions: better, worse, same, or cannot tell.",
        "judge": "Measure a judge by people's labels, and pick answers for people to label.",
        "score": "Score predictions or rankings of any system.",
    },
    ("release", "releases"): {
        "promote": "Make a finished run the live release, if it passes the gates.",
        "rollback": "Make the release before the live one live again.",
        "releases": "List the releases of a store.",
        "prune": "Delete tables and replies that nothing references.",
        "forget": "Take pages, documents or questions out of a store and its runs, for good.",
    },
    ("serve", "serve"): {
        "ask": "Answer one question, from the store or from pages in a file.",
        "serve": "Answer questions over HTTP on this machine.",
    },
    ("tools", "tools"): {
        "doctor": "Check what is installed and reachable, and print the command that fixes the rest.",
        "init": "Write the files of a project of your own: recipe, prompt, models, cluster, step, test.",
        "check": "Find every problem of recipes, other configuration files, and steps of your own.",
        "models": "List a recipe's models: where they are, how to get what is missing; add or adopt one.",
        "bench": "Measure speed next to other libraries, row by row; needs a checkout.",
        "completion": "Print the completion script of a shell.",
    },
}
"""Group and module -> commands of the module in this group: name -> help line. Plugins add others."""

COMMANDS: Registry[Command] = Registry(
    "commands",
    {
        name: Command(group, f"raypipe.api.cli.{module}", about)
        for (group, module), abouts in _OWN.items()
        for name, about in abouts.items()
    },
    "a command",
)
