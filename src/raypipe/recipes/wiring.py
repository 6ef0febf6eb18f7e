"""Table of the verbs of recipes with their step classes, and checks that a recipe's steps fit together."""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raypipe.core.config import Where, collected, did_you_mean, read_yaml
from raypipe.core.digests import FittedOn, stable
from raypipe.core.errors import ConfError, RaypipeError
from raypipe.core.plugins import Plugin, Registry
from raypipe.core.protocols import CorpusStep, Model, Step
from raypipe.core.records import digest
from raypipe.core.references import Reference
from raypipe.recipes.recipe import Recipe, Stage, ranking_of
from raypipe.recipes.step_contract import decides, embedder_of, given_by_fit, of_turns, step_class, table_of
from raypipe.steps.bm25 import Bm25, Tokenize
from raypipe.steps.compress import Compress
from raypipe.steps.decide import Decide
from raypipe.steps.dense import Dense, Similarity
from raypipe.steps.embed import Embed, EmbedContextual, EmbedDocument
from raypipe.steps.examples import Examples
from raypipe.steps.extract import Extract
from raypipe.steps.fuse import Fuse, ReadAll
from raypipe.steps.generate import Generate
from raypipe.steps.iterate import Iterate
from raypipe.steps.parse import Clean, Parse
from raypipe.steps.rerank import Listwise, Rerank, Shortlist
from raypipe.steps.split import Split
from raypipe.steps.stand_alone import StandAlone
from raypipe.store.adapters import RECIPE
from raypipe.text.template import ByLabel

CORPUS_STEPS: Registry[type[CorpusStep]] = Registry(
    "corpus_steps",
    {
        "parse": Parse,
        "clean": Clean,
        "tokenize": Tokenize,
        "split": Split,
        "embed": Embed,
        "embed_document": EmbedDocument,
        "embed_contextual": EmbedContextual,
    },
    "a step",
)

QUESTION_STEPS: Registry[type[Step]] = Registry(
    "question_steps",
    {
        "shortlist": Shortlist,
        "dense": Dense,
        "bm25": Bm25,
        "fuse": Fuse,
        "rerank": Rerank,
        "extract": Extract,
        "generate": Generate,
        "decide": Decide,
        "examples": Examples,
        "iterate": Iterate,
        "compress": Compress,
        "similarity": Similarity,
        "listwise": Listwise,
        "read_all": ReadAll,
        "stand_alone": StandAlone,
    },
    "a step",
)

HALVES: Mapping[str, Registry[Any]] = MappingProxyType({"corpus": CORPUS_STEPS, "question": QUESTION_STEPS})
STEPS: Mapping[str, type[Any]] = ChainMap(QUESTION_STEPS, CORPUS_STEPS)  # type: ignore[arg-type]
"""Verb -> class. Iteration imports the steps of all plugins."""


def step_of(half: str, verb: str) -> tuple[type[Any], Plugin | None]:
    """Returns the class of a verb, and its plugin or None. The plugin is returned only if the digest of its
    source is part of a step's identity: not for raypipe's own verbs, and not for plugins with locked
    versions. Raises KeyError if `half` lacks the verb, and ConfError if a plugin's class cannot be used."""
    added = HALVES[half].added(verb)
    return (HALVES[half][verb], None) if added is None or added.table.locked else step_class(added.value)


GIVEN = frozenset({"text", "body", "asked_at", "citations", "turns", "index.layouts"})
"""Names that the first question step may read: fields of a question, and the layouts of files."""


def misfits(recipe: Recipe, where: Where) -> list[RaypipeError]:
    """Returns an error for each place where steps do not fit together. A step may read a field that no
    earlier step writes, search vectors that the corpus half lacks, or rank too few passages for later steps.
    It may have numbers that were fitted to another recipe, or it may help neither to answer nor to rank."""
    errors: list[RaypipeError] = []
    columns = frozenset({"source", "kind", "content", "fault"})
    for i, stage in enumerate(recipe.corpus):
        here = where.at("corpus").at(i)
        errors += _unwritten(stage, stage.step.reads(), columns, here)
        columns |= stage.step.writes()
        if table_of(stage.step) == "vectors":
            with collected(errors):
                _embedder(stage, here)
    known = GIVEN | {f"index.{c}" for c in columns}
    for i, q in enumerate(recipe.question):
        here = where.at("question").at(i)
        errors += _unwritten(q, q.step.reads() | q.gate_reads(), known, here)
        if "index.vector" in q.step.reads():
            with collected(errors):
                if (model := _embedder(q, here)) not in recipe.embedders():
                    embedded = ", ".join(m.name for m in recipe.embedders()) or "nothing"
                    raise here.error(
                        f"{q.name} searches vectors of {model.name!r}; the corpus half embeds {embedded}"
                    )
        known |= q.step.writes()
    errors += _small_pools(recipe, where.at("question"))
    for i, q in enumerate(recipe.question):
        on = fitted_on(q.step)
        if on is not None and on.basis and on.basis != (rests_on := basis(recipe, q.name)):
            message = (
                f"{q.name}: expected fitted numbers of this recipe ({rests_on[:8]}), found some of "
                f"{on.recipe} ({on.basis[:8]}): an earlier step or a field differs. Fit again: raypipe fit "
                f"{q.verb} RUN, a run of this recipe without them; or leave fitted out"
            )
            errors.append(where.at("question").at(i).error(message))
    with collected(errors):  # either the last step decides, or every step serves a ranking
        deciding = [i for i, s in enumerate(recipe.question) if decides(s.step)]
        if deciding and deciding[-1] == len(recipe.question) - 1:
            return errors
        if deciding or not recipe.question:
            raise where.at("question").error("the last step must be decide: it chooses the answer's reply")
        kept = {s.name for s in ranking_of(recipe).question}
        for i, q in enumerate(recipe.question):
            if q.name not in kept:
                useless = f"{q.name} does not help to rank, and no decide takes its reply"
                raise where.at("question").at(i).error(f"{useless}: remove it, or end with decide")
    return errors


def _small_pools(recipe: Recipe, where: Where) -> Iterator[ConfError]:
    """Yields an error for each pool that is too small. A pool is the `top` passages of one step; later steps
    search only in them (`among`). It needs at least as many passages as the later steps find together."""
    searches = [(i, s) for i, s in enumerate(recipe.question) if getattr(s.step, "among", ())]
    for i, pool in enumerate(recipe.question):
        name: str | None = getattr(pool.step, "into", None)
        inside = [s for j, s in searches if j > i and name in getattr(s.step, "among", ())]
        wanted = sum(getattr(s.step, "top", 0) for s in inside)
        if inside and (kept := getattr(pool.step, "top", wanted)) < wanted:
            names = " and ".join(s.name for s in inside)
            looked = f"{pool.name} keeps {kept} passages and {names} look for {wanted} among them"
            yield where.at(i).error(f"{looked}; expected top: {wanted} or more")


def _embedder(stage: Stage[Any], where: Where) -> Model:
    """Returns the only embedder of a stage. Raises ConfError for none or several."""
    try:
        return embedder_of(stage.step)
    except ValueError as e:
        raise where.error(f"{stage.name}: {e}") from e


def _unwritten(
    stage: Stage[Any], reads: frozenset[str], known: frozenset[str], where: Where
) -> Iterator[ConfError]:
    for name in sorted(reads - known):
        yield where.error(
            f"{stage.name} reads {name}, which no earlier step writes; {did_you_mean(name, known)}"
        )


def fits_of(recipe: Recipe) -> dict[str, FittedOn]:
    """Returns what a recipe's numbers and adapters were fitted on. A key is the name of a stage with fitted
    numbers, or "adapter NAME of STAGE" for an adapter that the stage may use and `raypipe finetune` made."""
    found: dict[str, FittedOn] = {}
    for stage in recipe.question:
        if (on := fitted_on(stage.step)) is not None:
            found[stage.name] = on
        model, chosen = getattr(stage.step, "model", None), getattr(stage.step, "adapter", None)
        if not (isinstance(model, Model) and isinstance(chosen, ByLabel)):
            continue
        for name, folder in model.adapter_folders().items():  # a server's adapter has a name, not a path
            asked = name in chosen.values() and Path(folder).is_absolute()
            if asked and (on := trained_on(Path(folder))) is not None:
                found[f"adapter {name} of {stage.name}"] = on
    return found


def trained_on(adapter: Path) -> FittedOn | None:
    """Returns the labels on which an adapter was trained, as a file in its folder names them. Returns None if
    the file is missing or names no labels, as for an adapter of another tool."""
    made = read_yaml(adapter / RECIPE) if (adapter / RECIPE).is_file() else {}
    if not isinstance(labels := made.get("labels"), dict):
        return None
    count = labels["rows"] + labels["held_out"]
    return FittedOn(f"labels {labels['digest']}", "its labels", "labels", count, seen=made.get("seen", ""))


def fitted_on(step: Any) -> FittedOn | None:
    """Returns what the numbers in a step's field `fitted` were fitted on; None if the step has none."""
    found = getattr(getattr(step, "fitted", None), "fitted_on", None)
    return found if isinstance(found, FittedOn) else None


def basis(recipe: Recipe, name: str) -> str:
    """Returns the digest of all that the fitted numbers of the stage `name` depend on. It covers the corpus
    half, the question stages before this stage, and the fields of this stage that the fit does not set
    (`given_by_fit`). Leaves out steps for earlier turns. A reference that brings evidence counts only by type
    and name, so a daily update of a graph leaves a fit valid. Raises ConfError if no such stage exists."""
    before: list[str] = [_named(s, frozenset()) for s in recipe.corpus]
    for stage in (s for s in recipe.question if not of_turns(s.step)):
        if stage.name == name:
            return digest("basis", *before, _named(stage, given_by_fit(stage.step)))
        before.append(_named(stage, frozenset()))
    raise ConfError(f"recipe {recipe.name!r} has no step {name!r}")


def _named(stage: Stage[Any], without: frozenset[str]) -> str:
    values = {f.name: getattr(stage.step, f.name) for f in dataclasses.fields(stage.step)}
    named = {
        n: (type(v).__name__, v.name) if isinstance(v, Reference) and v.is_evidence else v
        for n, v in values.items()
        if n not in without
    }
    source = "" if stage.plugin is None else stage.plugin.source
    return digest(stage.kind(), stable(stage.step.version), stable(named), stable(dict(stage.when)), source)


def has_seen(fits: Iterable[FittedOn], text: str) -> bool:
    return any(on.has_seen(text) for on in fits)
