"""A recipe as a finished run describes it, and what differs between two of them: stage by stage, and in lines
for people, values before and after, of a text the lines that changed. Imports no step."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from raypipe.core.digests import model_identity, stable
from raypipe.core.protocols import Model
from raypipe.core.records import digest
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.serialize import leaves
from raypipe.recipes.step_contract import of_turns
from raypipe.store.memo.memo import replies_of

Kind = Literal["model", "prompt", "parameter"]
INLINE = 60  # characters of a value that stands in a sentence; a longer one is compared line by line
MOST_LINES = 40  # of one difference
NOTHING = "not there"


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """A field of a step as it was."""

    kind: Kind
    form: str  # canonical: core.digests.stable


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage of a recipe as it was."""

    half: Literal["corpus", "question"]
    name: str
    step: str  # class; its path, where it comes from outside
    version: int
    digest: str
    chain: str  # digest of the stage and of all stages that what it reads comes from
    when: str  # canonical
    writes: tuple[str, ...]
    fields: Mapping[str, FieldRecord]
    source: str = ""  # digest of the source file of a step from outside; "": raypipe ships it


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model as it was."""

    name: str
    kind: str
    identity: str
    weights: str
    dtype: str
    replies: str = ""  # memo table of what it replied; "": it is no generator
    unsent: tuple[str, ...] = ()  # fields of chats that its server refuses, so they were sent without
    adopted: str = ""  # what is said of it where it counts as another (`Adoption.sentence`); "": it does not


def describe(recipe: Recipe) -> tuple[StageRecord, ...]:
    chained = chains(recipe)

    def record(half: Literal["corpus", "question"], stage: Stage[Any]) -> StageRecord:
        step, fields = stage.step, dict[str, FieldRecord]()
        for name in (f.name for f in dataclasses.fields(step)):
            value = getattr(step, name)
            of_prompt: Kind = "prompt" if name == "prompt" else "parameter"
            fields[name] = FieldRecord("model" if isinstance(value, Model) else of_prompt, stable(value))
        when, writes = stable(dict(stage.when)), tuple(sorted(step.writes()))
        known = stage.name, stage.kind(), step.version, stage.digest(), chained[stage.name], when, writes
        return StageRecord(half, *known, fields, stage.plugin.source if stage.plugin else "")

    return (*(record("corpus", s) for s in recipe.corpus), *(record("question", s) for s in recipe.question))


def chains(recipe: Recipe) -> dict[str, str]:
    """Maps each stage to a digest of itself and of all stages upstream of it.

    Two recipes in which a stage has the same chain ask the same of its model about an equal row.
    """
    writers: dict[str, list[str]] = {}  # what is read -> chains of those that write it
    out: dict[str, str] = {}

    def add(stage: Stage[Any], reads: Iterable[str], writes: Iterable[str]) -> None:
        before = dict.fromkeys(c for r in sorted(reads) for c in writers.get(r, ()))
        out[stage.name] = digest("chain", stage.digest(), *before)
        for name in writes:
            writers.setdefault(name, []).append(out[stage.name])

    for c in recipe.corpus:
        add(c, [f"index.{r}" for r in c.step.reads()], [f"index.{w}" for w in c.step.writes()])
    for q in recipe.question:
        if of_turns(q.step):  # of questions with turns: their row keys tell, and no other's depend on it
            add(q, q.step.reads(), ())
            continue
        reads = q.step.reads() | q.gate_reads()
        if any(r.startswith("index.") and r != "index.text" for r in reads):
            reads |= {"index.start"}  # a search reads passages, which the split made
        add(q, reads, q.step.writes())
    return out


def models_of(recipe: Recipe) -> tuple[ModelRecord, ...]:
    return tuple(
        ModelRecord(
            m.name,
            m.kind,
            model_identity(m),
            m.weights,
            m.dtype,
            replies_of(m).name if m.kind == "generator" else "",
            m.unsent,
            m.adopted.sentence(m.name) if m.adopted else "",
        )
        for m in recipe.models()
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a stage from what it was."""

    stage: str
    kind: Literal["model", "prompt", "parameter", "version"]
    field: str  # field, "when", "version", "source" or "step"
    before: str  # "" where there was no such stage
    after: str  # "" where there is none now
    lines: tuple[str, ...] = ()  # the same for people (`with_lines`)


def differences(old: Sequence[StageRecord], new: Sequence[StageRecord]) -> dict[str, Difference]:
    """Stage -> what differs in the stage itself. Matched by name; one that is gone is listed too."""
    was = {s.name: s for s in old}
    found = [_difference(was.get(s.name), s) for s in new]
    gone = [s for s in old if s.name not in {n.name for n in new}]
    found += [Difference(s.name, "parameter", "step", s.step, "") for s in gone]
    return {d.stage: d for d in found if d is not None}


def _difference(old: StageRecord | None, new: StageRecord) -> Difference | None:
    if old is None or old.step != new.step:
        return Difference(new.name, "parameter", "step", old.step if old else "", new.step)
    if old.digest == new.digest:
        return None
    if old.version != new.version:
        return Difference(new.name, "version", "version", str(old.version), str(new.version))
    if old.source != new.source:
        return Difference(new.name, "version", "source", old.source, new.source)
    for name, now in sorted(
        new.fields.items(), key=lambda f: ("model", "prompt", "parameter").index(f[1].kind)
    ):
        form = old.fields[name].form if name in old.fields else ""
        if form != now.form:
            return Difference(new.name, now.kind, name, form, now.form)
    return Difference(new.name, "parameter", "when", old.when, new.when)


def recipe_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """All that differs between two recipes as `recipes.serialize.to_plain` has them, field by field; of a
    prompt its changed lines."""
    old, new = _stages(before), _stages(after)
    found: list[str] = []
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            found.append(f"{name}: {'added' if name in new else 'removed'}")
        else:
            found += _value_lines((name,), old[name], new[name])
    return tuple(found)


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """A recipe as `recipes.serialize.to_plain` has it, for people: a line for each value."""
    return "\n".join(f"{name}: {value}" for name, value in recipe_values(recipe))


def recipe_values(recipe: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each value of a recipe with its name, step and field."""
    for name, values in _stages(recipe).items():
        for path, value in values.items():
            yield ".".join((name, *path)), value


def _stages(recipe: Mapping[str, Any]) -> dict[str, dict[tuple[str, ...], str]]:
    """The leaves of each stage, its gate among them."""
    out = {}
    for stage in (*recipe["corpus"], *recipe["question"]):
        gate = {"when": stage["when"]} if stage["when"] else {}
        out[stage["name"]] = dict(leaves({**stage["step"], **gate}))
    return out


def with_lines(
    found: Mapping[str, Difference], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Difference]:
    """The differences of two recipes by stage, with the lines that say what differs."""
    out = {}
    for name, d in found.items():
        lines = _value_lines((d.stage, d.field), _values(before, d), _values(after, d))
        more = len(lines) - MOST_LINES
        cut = [*lines[:MOST_LINES], f"... and {more} more lines"] if more > 0 else lines
        out[name] = replace(d, lines=tuple(cut))
    return out


def _value_lines(
    where: tuple[str, ...], old: Mapping[tuple[str, ...], str], new: Mapping[tuple[str, ...], str]
) -> list[str]:
    found: list[str] = []
    said: tuple[str, ...] | None = None  # path of a model whose name differs: that says it all
    # Paths that have a value of their own and values below: names of models and graphs.
    names = {p for tree in (old, new) for p in tree if any(q[: len(p)] == p and q != p for q in tree)}
    for path in dict.fromkeys([*old, *new]):
        a, b = old.get(path, NOTHING), new.get(path, NOTHING)
        if a == b or (said is not None and path[: len(said)] == said):
            continue
        if path in names:
            said = path
        found += _change(".".join((*where, *path)), a, b)
    return found


def _values(recipe: Mapping[str, Any], d: Difference) -> dict[tuple[str, ...], str]:
    """The leaves of a stage's field; none where the stage or the field is not there."""
    for stage in (*recipe["corpus"], *recipe["question"]):
        if stage["name"] == d.stage:
            tree = stage if d.field == "when" else stage["step"]
            return dict(leaves(tree[d.field])) if d.field in tree else {}
    return {}


def _change(where: str, old: str, new: str) -> Iterator[str]:
    if all(len(x) <= INLINE and "\n" not in x for x in (old, new)):
        yield f"{where} was {old or NOTHING}, is {new or NOTHING}"
        return
    yield f"{where} changed:"
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    for line in itertools.islice(lines, 2, None):  # the first two name files
        if not line.startswith("@@"):
            yield f"{line[0]} {line[1:]}"
