"""Description of a recipe in a run's record, and the differences between two recipes, stage by stage.

For people, a difference is shown in lines: the values before and after, or the changed lines of a long text.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from raypipe.core.digests import model_identity, stable
from raypipe.core.protocols import Model
from raypipe.core.records import digest
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.serialize import leaves
from raypipe.recipes.step_contract import of_turns
from raypipe.store.memo.memo import replies_of

Kind = Literal["model", "prompt", "parameter"]  # differences are named in this order
INLINE = 60  # characters of a value, at most, to show it in a sentence; longer ones are shown by lines
MOST_LINES = 40  # lines of one difference, at most; a further line counts the others
NOTHING = "not set"
Values: TypeAlias = Mapping[tuple[str, ...], str]  # path -> leaf value


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """A field of a step at the time of a run."""

    kind: Kind
    form: str  # the value in canonical form (core.digests.stable)


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage of a recipe at the time of a run."""

    half: Literal["corpus", "question"]
    name: str
    step: str  # name of the step's class; path MODULE:NAME of a class from outside raypipe
    version: int
    digest: str
    chain: str  # digest of the stage and of all stages upstream (`chains`)
    when: str  # gate, in canonical form
    writes: tuple[str, ...]
    fields: Mapping[str, FieldRecord]
    source: str = ""  # digest of the source file of a step from outside; "": raypipe's own step


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model at the time of a run."""

    name: str
    kind: str
    identity: str
    weights: str
    dtype: str
    replies: str = ""  # memo table of its replies; "": not a generator
    unsent: tuple[str, ...] = ()  # fields of chats that are omitted, since the server refuses them
    adopted: str = ""  # a sentence if it counts as another model (`Adoption.sentence`); "": it does not


def describe(recipe: Recipe) -> tuple[StageRecord, ...]:
    """Describes the stages of a recipe for a run's record: corpus steps, then question steps."""
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
    """Maps each stage to its chain: a digest of the stage and of all stages upstream. Upstream are the stages
    that write a field that the stage reads, and the stages upstream of these. A stage with the same chain in
    two recipes sends its model the same requests for an equal row."""
    writers: dict[str, list[str]] = {}  # field -> chains of the stages that write it
    out: dict[str, str] = {}

    def add(stage: Stage[Any], reads: Iterable[str], writes: Iterable[str]) -> None:
        before = dict.fromkeys(c for r in sorted(reads) for c in writers.get(r, ()))
        out[stage.name] = digest("chain", stage.digest(), *before)
        for name in writes:
            writers.setdefault(name, []).append(out[stage.name])

    for c in recipe.corpus:
        add(c, [f"index.{r}" for r in c.step.reads()], [f"index.{w}" for w in c.step.writes()])
    for q in recipe.question:
        if of_turns(q.step):  # only questions with turns depend on it, and their row keys cover it
            add(q, q.step.reads(), ())
            continue
        reads = q.step.reads() | q.gate_reads()
        if any(r.startswith("index.") and r != "index.text" for r in reads):
            reads |= {"index.start"}  # a search reads passages: `start` stands for all fields of the split
        add(q, reads, q.step.writes())
    return out


def models_of(models: Iterable[Model]) -> tuple[ModelRecord, ...]:
    """Describes models for a run's record."""

    def record(m: Model) -> ModelRecord:
        replies = replies_of(m).name if m.kind == "generator" else ""
        adopted = m.adopted.sentence(m.name) if m.adopted else ""
        return ModelRecord(m.name, m.kind, model_identity(m), m.weights, m.dtype, replies, m.unsent, adopted)

    return tuple(map(record, models))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a stage between two recipes."""

    stage: str
    kind: Literal["model", "prompt", "parameter", "version"]
    field: str  # field, "when", "version", "source" or "step"
    before: str  # "": there was no such stage
    after: str  # "": there is no such stage
    lines: tuple[str, ...] = ()  # the difference in lines for people (`with_lines`)


def differences(old: Sequence[StageRecord], new: Sequence[StageRecord]) -> dict[str, Difference]:
    """Maps the names of stages that differ to their first difference. A stage differs if its own step or gate
    differs, or if it was added or removed (field "step"). Matches stages by name, and ignores their order."""
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
    for name, now in sorted(new.fields.items(), key=lambda item: get_args(Kind).index(item[1].kind)):
        form = old.fields[name].form if name in old.fields else ""
        if form != now.form:
            return Difference(new.name, now.kind, name, form, now.form)
    return Difference(new.name, "parameter", "when", old.when, new.when)


def recipe_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists the differences of two recipes (`to_plain`) for people. A long text is listed only by its changed
    lines, a changed model only by its name."""
    old, new = _stages(before), _stages(after)
    lines: list[str] = []
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            lines.append(f"{name}: {'added' if name in new else 'removed'}")
        else:
            lines += _value_lines(name, old[name], new[name])
    return tuple(lines)


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """Returns a recipe (`recipes.serialize.to_plain`) as text for people, a line per value."""
    return "\n".join(f"{name}: {value}" for name, value in recipe_values(recipe))


def recipe_values(recipe: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the name, such as `extract.threshold`, and the text of each value of a recipe."""
    for name, values in _stages(recipe).items():
        for path, value in values.items():
            yield ".".join((name, *path)), value


def _stages(recipe: Mapping[str, Any]) -> dict[str, Values]:
    """Maps each stage to its leaf values, by path. The values of its gate are included."""
    out: dict[str, Values] = {}
    for stage in (*recipe["corpus"], *recipe["question"]):
        gate = {"when": stage["when"]} if stage["when"] else {}
        out[stage["name"]] = dict(leaves({**stage["step"], **gate}))
    return out


def with_lines(
    found: Mapping[str, Difference], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Difference]:
    """Adds lines for people to each difference: at most MOST_LINES, and a line that counts further lines. A
    different class, version or source file of a step gets no lines."""
    old, new, out = _stages(before), _stages(after), {}
    for name, d in found.items():
        whole = d.field in ("step", "version", "source")
        lines = [] if whole else _value_lines(name, old.get(name, {}), new.get(name, {}))
        if (more := len(lines) - MOST_LINES) > 0:
            lines[MOST_LINES:] = [f"... and {more} more lines"]
        out[name] = replace(d, lines=tuple(lines))
    return out


def _value_lines(stage: str, old: Values, new: Values) -> list[str]:
    """Lists the differences of a stage's values for people."""
    lines: list[str] = []
    renamed: tuple[str, ...] | None = None  # path of a model whose name differs: its other values are omitted
    # Paths with a value of their own and values below it: names of models and graphs.
    names = {p for tree in (old, new) for p in tree if any(q[: len(p)] == p and q != p for q in tree)}
    for path in dict.fromkeys([*old, *new]):
        a, b = old.get(path, NOTHING), new.get(path, NOTHING)
        if a == b or (renamed is not None and path[: len(renamed)] == renamed):
            continue
        if path in names:
            renamed = path
        lines += _change(".".join((stage, *path)), a, b)
    return lines


def _change(where: str, old: str, new: str) -> Iterator[str]:
    if all(len(x) <= INLINE and "\n" not in x for x in (old, new)):
        yield f"{where} was {old or NOTHING}, is {new or NOTHING}"
        return
    yield f"{where} changed:"
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    for line in itertools.islice(lines, 2, None):  # the first two name files
        if not line.startswith("@@"):
            yield f"{line[0]} {line[1:]}"
