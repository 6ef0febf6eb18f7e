"""Checks of configuration files and of steps of your own, before a recipe uses them.

All problems of a file are reported together, with their lines if these are known. A step is run on fixed
inputs, to test the laws (rules that every step must obey). No model is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.core import config
from raypipe.core.config import MisplacedValue, Where
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Model
from raypipe.core.references import Entry
from raypipe.models.entry import ModelEntry
from raypipe.recipes.check import StepCheck, check_step, fakes_for
from raypipe.recipes.read_recipe import problems as recipe_problems
from raypipe.recipes.read_recipe import read_tree
from raypipe.recipes.resolve import ENTRIES, FILES, resolvers
from raypipe.runs.cluster.cluster_file import Cluster
from raypipe.steps.decide import AnswerProbability
from raypipe.steps.fuse import FusionWeights
from raypipe.text.evidence import Fitted
from raypipe.text.template import Prompt

FileKind: TypeAlias = str
"""Kind of a file: a key of _KEYS, models, graphs, or the name of a folder of files that a plugin adds."""
_LINE = re.compile(r"line (\d+)")
_KEYS: Mapping[FileKind, frozenset[str]] = {
    "recipe": frozenset(("question", "corpus", "like")),
    "cluster": frozenset(("pools", "machines", "backend")),
    "prompt": frozenset(("system", "user")),
    "fitted": frozenset(("fitted_on",)),
}
"""Kind of file -> keys that occur in this kind only."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in a configuration file."""

    file: str
    line: int | None  # from 1; None: the mistake concerns the whole file
    path: str  # place in the file: `question[3].rerank.top`; "": the whole file
    message: str  # what was expected and found

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file}{line}: {self.path + ': ' if self.path else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A configuration file that was read."""

    file: str
    kind: FileKind | None  # None: the file is unreadable or of no known kind
    problems: int  # number of problems


@dataclass(frozen=True, slots=True, repr=False)
class CheckResult(Result, rows="problems"):
    """Checked files, their problems, and the tests of steps. Each problem is a row."""

    files: tuple[CheckedFile, ...]
    problems: tuple[Problem, ...]
    steps: tuple[StepCheck, ...]

    def record(self) -> Mapping[str, Any]:
        steps = [{**asdict(step), "holds": step.holds} for step in self.steps]
        return {"files": self.files, "problems": self.problems, "steps": steps}

    @property
    def fine(self) -> bool:
        """True if no file has a problem and each step obeys the laws."""
        return not self.problems and all(step.holds for step in self.steps)


def check(
    *names: str | Path,
    fields: Mapping[str, Any] | None = None,
    lock: bool = False,
    session: Session | None = None,
) -> CheckResult:
    """Finds the problems of configuration files, and tests whether steps of your own obey the laws of steps.

    `names` are recipes (by name or path), other configuration files, and steps. A step is named MODULE:CLASS,
    and gets the `fields` that it would have in a recipe. Fakes that compute replace its models. The step's
    output is compared with the digest in the file steps.lock next to its module. `lock` writes the digest if
    all laws hold, unless the output changed and the version did not. Raises ConfError for a name that is
    neither recipe nor file, and for a MODULE:CLASS that is no step. Raises DataError for a step that raises.
    """
    session = session or Session()
    files, problems, steps = [], list[Problem](), list[StepCheck]()
    for name in names:
        if is_path(str(name)):
            models = session.catalog()
            fakes = fakes_for({name: entry.kind for name, entry in models.entries.items()})
            resolve = resolvers(session.settings.conf, models, {}, {Model: fakes})
            steps.append(check_step(str(name), fields or {}, resolve, lock))
            continue
        path = session.settings.conf.find("recipes", str(name))
        kind, in_file = _checked(path, session)
        files.append(CheckedFile(str(path), kind, len(in_file)))
        problems += in_file
    return CheckResult(tuple(files), tuple(problems), tuple(steps))


def _checked(path: Path, session: Session) -> tuple[FileKind | None, list[Problem]]:
    try:
        tree = config.read_yaml(path)
    except ConfError as e:
        lines = _LINE.findall(str(e))  # YAML may name two: the line where the block begins, then the mistake
        line, message = int(lines[-1]) if lines else None, str(e).removeprefix(f"{path}: ")
        return None, [Problem(str(path), line, "", message)]
    if (kind := kind_of(tree)) is None:
        known = "a recipe, a models, cluster or graphs file, a prompt, fitted numbers or a preset"
        keys = f"expected {known}, found keys {', '.join(map(str, tree))}"
        return None, [Problem(str(path), None, "", keys)]
    text, problems = path.read_text(encoding="utf-8"), list[Problem]()
    for wrong in _found(kind, tree, path, session):
        if isinstance(wrong, MisplacedValue) and wrong.where.file == str(path):
            at = line_of(text, wrong.where.path) or _line_in_set(text, wrong.where.path)
            problems.append(Problem(str(path), at, wrong.where.path, wrong.message))
        else:
            problems.append(Problem(str(path), None, "", str(wrong)))
    return kind, problems


def kind_of(tree: Mapping[str, Any]) -> FileKind | None:
    """Guesses the kind of a file from its keys, or from the keys of its entries; None for an unknown kind.

    >>> kind_of({"question": []}), kind_of({"minilm": {"kind": "embedder", "loader": "hash"}})
    ('recipe', 'models')
    """
    for kind, keys in _KEYS.items():
        if tree.keys() & keys:
            return kind
    entries = [e for e in tree.values() if isinstance(e, dict)]
    if any("loader" in e for e in entries):
        return "models"
    if any("kind" in e for e in entries):
        return "graphs"
    names = {folder: {f.name for f in fields(cls)} for folder, cls in FILES.items()}
    return next((folder for folder in FILES if 2 * len(tree.keys() & names[folder]) > len(tree)), None)


def _found(kind: FileKind, tree: Mapping[str, Any], path: Path, session: Session) -> Sequence[RaypipeError]:
    """Returns the problems of a file of the given kind."""
    where = Where(str(path))
    if kind == "recipe":
        return _in_recipe(path, where, session)
    if kind == "graphs":
        return _in_graphs(tree, where)
    if kind == "models":
        return [p for name, e in tree.items() for p in config.problems(ModelEntry, e, where.at(str(name)))]
    cls: type[Any] = {**FILES, "cluster": Cluster, "prompt": Prompt, "fitted": Fitted}[kind]
    if kind == "fitted":  # `decide` reads a threshold, `fuse` only weights, `extract` other numbers
        if "threshold" in tree:
            cls = AnswerProbability
        elif tree.keys() == {"weights", "fitted_on"}:
            cls = FusionWeights
    return config.problems(cls, tree, where)


def _in_recipe(path: Path, where: Where, session: Session) -> Sequence[RaypipeError]:
    files = session.settings.conf
    try:
        resolve = resolvers(files, session.catalog(), session.graphs)
        whole = read_tree(path, lambda name: files.find("recipes", name))
    except RaypipeError as e:
        return [e]
    return recipe_problems(whole, where, resolve)


def _in_graphs(tree: Mapping[str, Any], file: Where) -> list[RaypipeError]:
    found: list[RaypipeError] = []
    for name, entry in tree.items():
        where, kind = file.at(str(name)), entry.get("kind") if isinstance(entry, dict) else None
        if kind is None or (isinstance(kind, str) and kind in ENTRIES):
            found += config.problems(Entry if kind is None else ENTRIES[kind].entry, entry, where)
        else:
            expected = f"expected one of {', '.join(ENTRIES)}"
            found.append(where.at("kind").error(f"{expected}, found {config.kind_of(kind)}"))
    return found


def _line_in_set(text: str, path: str) -> int | None:
    """Finds the line at which a recipe with `like` changes the field at `path` by an entry of `set`. The path
    `question[3].rerank.top` finds `rerank.top: 5`. Returns None without such an entry."""
    verb, _, field = re.sub(r"^\w+\[\d+\]\.", "", path).partition(".")
    top = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = dict((k.value, v) for k, v in top.value) if isinstance(top, yaml.MappingNode) else {}
    given = pairs.get("set")
    for key, _ in given.value if isinstance(given, yaml.MappingNode) else ():
        stage, _, name = key.value.rpartition(".")
        if name and name == field.partition(".")[0] and stage.partition(":")[0].partition("#")[0] == verb:
            return int(key.start_mark.line) + 1
    return None


def line_of(text: str, path: str) -> int | None:
    """Finds the line, from 1, of the innermost existing part of a path such as `question[3].rerank.top` in a
    YAML text; None if no part exists.

    >>> line_of("a: 1\\nb:\\n  - c: 2\\n  - d:\\n      e.f: 3\\n", "b[1].d.e.f")
    5
    """
    node, rest, line = yaml.compose(text, Loader=yaml.SafeLoader), path, None
    while rest and node is not None:
        rest = rest.removeprefix(".")
        if isinstance(node, yaml.SequenceNode) and (at := re.match(r"\[(\d+)\]", rest)):
            if int(at[1]) >= len(node.value):
                break
            node, rest = node.value[int(at[1])], rest[at.end() :]
            line = node.start_mark.line + 1
            continue
        keys = node.value if isinstance(node, yaml.MappingNode) else []
        fits = [(k, v) for k, v in keys if rest == k.value or rest.startswith((f"{k.value}.", f"{k.value}["))]
        if not fits:
            break
        key, node = max(fits, key=lambda kv: len(kv[0].value))
        line, rest = key.start_mark.line + 1, rest[len(key.value) :]
    return line
