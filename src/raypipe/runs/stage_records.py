"""A recipe as a finished run describes it, so that two of them can be compared stage by stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raypipe.core.digests import model_identity, stable
from raypipe.core.protocols import Model
from raypipe.core.records import digest
from raypipe.memo.memo import replies_of
from raypipe.recipes.recipe import Recipe, Stage

Kind = Literal["model", "prompt", "parameter"]


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """One field of a step as it was."""

    kind: Kind
    form: str  # canonical: core.digests.stable


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of a recipe as it was."""

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
    """One model as it was."""

    name: str
    kind: str
    identity: str
    weights: str
    dtype: str
    replies: str = ""  # memo table of what it replied; "": it is no generator


def describe(recipe: Recipe) -> tuple[StageRecord, ...]:
    chained = chains(recipe)
    corpus = [_describe("corpus", s, chained[s.name]) for s in recipe.corpus]
    return (*corpus, *(_describe("question", s, chained[s.name]) for s in recipe.question))


def _describe(half: Literal["corpus", "question"], stage: Stage[Any], chain: str) -> StageRecord:
    step = stage.step
    return StageRecord(
        half=half,
        name=stage.name,
        step=stage.kind(),
        version=step.version,
        digest=stage.digest(),
        chain=chain,
        when=stable(dict(stage.when)),
        writes=tuple(sorted(step.writes())),
        fields={f.name: _field(f.name, getattr(step, f.name)) for f in dataclasses.fields(step)},
        source="" if stage.plugin is None else stage.plugin.source,
    )


def chains(recipe: Recipe) -> dict[str, str]:
    """Stage -> digest of it and of everything that what it reads comes from.

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
        reads = q.step.reads() | q.gate_reads()
        if any(r.startswith("index.") and r != "index.text" for r in reads):
            reads |= {"index.start"}  # a search reads passages, which the split made
        add(q, reads, q.step.writes())
    return out


def _field(name: str, value: Any) -> FieldRecord:
    kind: Kind = "parameter"
    if isinstance(value, Model):
        kind = "model"
    elif name == "prompt":
        kind = "prompt"
    return FieldRecord(kind, stable(value))


def models_of(recipe: Recipe) -> tuple[ModelRecord, ...]:
    return tuple(
        ModelRecord(
            m.name, m.kind, model_identity(m), m.weights, m.dtype,
            replies_of(m).name if m.kind == "generator" else "",
        )
        for m in recipe.models()
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """What is not as it was in one stage: the first thing that differs."""

    stage: str
    kind: Literal["model", "prompt", "parameter", "version"]
    field: str  # field, "when", "version", "source" or "step"
    before: str  # "" where there was no such stage
    after: str  # "" where there is none now
    lines: tuple[str, ...] = ()  # the same for people, of a text its changed lines (`runs.field_diff`)


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
