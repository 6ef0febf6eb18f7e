"""Arguments that several commands share, and functions that check the values of arguments for argparse."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from raypipe.api.cli.command import Parameter, Shell, arg, say
from raypipe.api.session import Session
from raypipe.core.config import did_you_mean
from raypipe.core.plugins import is_path, registered

T = TypeVar("T")


def one_of(*shipped: str, kind: str | None = None) -> Callable[[str], str]:
    """Returns a function by which argparse reads one of the names `shipped`, or a name that a plugin adds to
    the table `kind` (a field of PluginTable). It also accepts a path MODULE:NAME of your own code."""

    def read(text: str) -> str:
        if text in shipped or is_path(text):
            return text
        added = () if kind is None else registered(kind)
        if text in added:
            return text
        hint = did_you_mean(text, [*shipped, *added])
        raise argparse.ArgumentTypeError(f"unknown value {text!r}; {hint}, or MODULE:NAME of your own")

    return read


def _number(kind: type[T], fits: Callable[[T], bool], expected: str, name: str) -> Callable[[str], T]:
    """Returns a function that reads a number of type `kind`, and refuses it if `fits` returns False. The
    error then says `expected`. For a text that is no number, argparse's error says `name`."""

    def read(text: str) -> T:
        value = kind(text)  # type: ignore[call-arg]
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text.strip()}")
        return value

    read.__name__ = name
    return read


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Returns a function that reads a whole number from `least` to `most`; None sets no upper bound."""
    expected = f"at least {least}" if most is None else f"{least} to {most}"
    top = math.inf if most is None else most
    return _number(int, lambda n: least <= n <= top, expected, "whole number")


finite = _number(float, math.isfinite, "a finite number", "float")
above_0 = _number(float, lambda x: 0 < x < math.inf, "a number above 0", "above_0")
share = _number(float, lambda x: 0 < x <= 1, "a share above 0 and at most 1", "share")
share_or_0 = _number(float, lambda x: 0 <= x <= 1, "a share from 0 to 1", "share from 0 to 1")


def names(text: str) -> list[str]:
    """Splits a text into names at its commas. Spaces around a name are dropped."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _graph(text: str) -> tuple[str, str]:
    """Splits the argument NAME=WHERE into a graph's name and its location. A text without NAME= is a location
    with the name "". This location serves for all graphs without an argument of their own."""
    name, sign, place = text.partition("=")
    return (name, place) if sign and "/" not in name else ("", text)


_RECIPE = "a name under conf/recipes, or a path"
RECIPE: Any = arg(_RECIPE, "RECIPE", needed=True)
LIVE = f"{_RECIPE}; live: the released one"
RUN: Any = arg("the --out folder of a finished eval", "DIR", needed=True)
MODELS: Any = arg("models file over conf/models.yaml: its entries replace those of the same name", "FILE")
LLM: Any = arg(
    "use this in place of the recipe's language models: an entry of the models file, a folder, or "
    "URL#MODEL, such as http://127.0.0.1:8000/v1#MODEL with the key $RAYPIPE_LLM_KEY",
    "MODEL",
)
GRAPHS: Any = arg(
    "location of a graph, public data or examples; without NAME, of all (as in conf/graphs.yaml, else kg in "
    "the data)",
    "[NAME=]WHERE",
    _graph,
    flag="--graph",
    each=True,
)
CLUSTER: Any = arg("a name under conf/clusters, or a path (default: laptop)", "NAME", default="laptop")
SETS: Any = arg(
    "a field of a step, such as split.child_chars=500; may be repeated",
    "STEP[:INTO].FIELD=VALUE",
    flag="--set",
    each=True,
)
DATA: Any = arg("files or URIs to ingest first", "PATH")
_FORMATS = ("crag", "beir", "qasper", "oag", "warc", "rows")
_FORMAT = (
    "format of the data: crag, beir, synth, qasper, oag (OAG-QA), warc (a crawl's pages), rows (questions or "
    "documents of your own: jsonl, json, csv or parquet), {}or MODULE:NAME of a reader of your own (default: "
    "detected)"
)
FORMAT: Any = arg(_FORMAT.format(""), "FORMAT", one_of(*_FORMATS, kind="readers"))
FILES_FORMAT: Any = arg(
    _FORMAT.format("files (a folder of txt, md, html, csv, pdf, docx), "),
    "FORMAT",
    one_of(*_FORMATS, "files", kind="readers"),
)
FIELDS: Any = arg(
    "fields with uncommon names, by role: query=FIELD, answer=FIELD (A+B: both), id, documents, "
    "time, domain, question_type; of documents title, url, text, html, path. a.b is b inside a",
    "ROLE=FIELD,...",
)
KIND: Any = arg(
    "kind of the golds: crag, qa, qasper, ranking, or MODULE:NAME (default: the format's)",
    "KIND",
    one_of("crag", "qa", "qasper", "ranking"),
)
read_rule = one_of("official", "accuracy", "words")
FILE_RULE: Any = arg("rule by which a file was judged (official; for a run, its own)", "RULE", read_rule)
TRIM: Any = arg("cut answers to 75 tokens, as CRAG does (llama-2)", "TOKENIZER", const="llama-2-tokens")
LABELS: Any = arg("people's verdicts (labels.jsonl), which outrank the judge's", "FILE")
LIMIT: Any = arg("take only the first N questions", "N", whole(1))
REFRESH: Any = arg("recompute answers that rest on expired replies of a knowledge graph (graphs.yaml)")
MARGIN: Any = arg("count differences within M as the same (0.02)", "M", above_0, default=0.02)
MEASURE: Any = arg("measure to optimise or compare, such as f1 (the lead measure of reports)", "NAME")
DRY_RUN: Any = arg("check everything, print the plan, run nothing")


_SESSION = (
    Parameter("models", str | None, MODELS, True),
    Parameter("llm", str | None, LLM, True),
    Parameter("graphs", Sequence[tuple[str, str]], GRAPHS, True),
    Parameter("cluster", str, CLUSTER, True),
    Parameter("sets", Sequence[str], SETS, True),
)


def session(*names: str) -> Any:
    """Returns the default of a command's Session parameter: the options `names`. An option becomes the field
    of the session with the same name. Raises KeyError for an unknown name."""
    known = {option.name: option for option in _SESSION}
    return [known[name] for name in names]


OF_RECIPE = ("models", "llm", "graphs", "cluster")
"""Options of a session that runs recipes. A command that runs one recipe also has `sets`."""


@dataclass(frozen=True, slots=True)
class StoreFlags:
    """Options that choose the store."""

    store: str | None = arg("the store ($RAYPIPE_STORE, else stores/default under $RAYPIPE_HOME)", "URI")
    docs: str | None = arg("search this folder instead of a store; its changed files are read first", "DIR")

    def uri(self, session: Session, read: bool = False, out: str | None = None) -> str | None:
        """Returns the address of the store; None if neither --store nor --docs is given. With `read`, changed
        files of --docs are read first. Raises ConfError if the folder --docs is missing or contains `out`."""
        if self.docs is None:
            return self.store
        from raypipe.api.data import docs_store  # .3 s, only for --docs

        return str(docs_store(self.docs, self.store, session, out, read))


@dataclass(frozen=True)  # slots of two bases clash
class Options:
    """Base of groups of options that a command passes on as keyword arguments."""

    def given(self) -> dict[str, Any]:
        """Maps the name of each given option to its value. Options with None or False are left out."""
        return {name: value for name, value in vars(self).items() if value is not None and value is not False}


@dataclass(frozen=True)
class ScoredFlags(Options):
    """Options of the data, and of the scoring of answers."""

    format: str | None = FORMAT
    fields: str | None = FIELDS
    kind: str | None = KIND
    rule: str | None = arg("official, accuracy, words or MODULE:NAME; for crag (official)", "RULE", read_rule)
    judge: str | None = arg(
        "judge of answers that the rule leaves open: an entry of the models file, a folder, URL#MODEL with "
        "the key $RAYPIPE_JUDGE_KEY, or MODULE:NAME",
        "MODEL",
    )


@dataclass(frozen=True)
class PlanFlags(ScoredFlags):
    """Options of an eval and of its plan."""

    limit: int | None = LIMIT
    refresh: bool = REFRESH
    only_new: bool = arg("keep the answers of the run before, marked; answer only the other questions")


@dataclass(frozen=True)
class WorkFlags(Options):
    """Options that limit an eval's work, or repeat a part of it."""

    fresh: bool = arg("answer all questions; ask language models again instead of using cached replies")
    max_calls: int | None = arg("start no task after N calls to models and graphs", "N", whole(1))
    max_usd: float | None = arg("start no task after X US dollars for all that has a price", "X", above_0)
    max_hours: float | None = arg("start no task after H hours of wall time", "H", above_0)
    retry_faults: bool = arg("retry rows that failed permanently")


def say_data(shell: Shell, data: object, store: str | None) -> None:
    """Prints on stderr that the questions in the store are used, unless `data` are given."""
    if not data:
        say(f"no --data: the questions in {shell.settings.store_to_use(store)}")
