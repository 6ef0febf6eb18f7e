"""A recipe: one system as data. Two lists of frozen steps, their gates, and the digests that name them.

*What* is computed stands here and nowhere else. Batch sizes, actors, GPUs, paths and addresses are not here:
they stand in the cluster file and change nothing in a digest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, get_args

from raypipe.core import config
from raypipe.core.config import Resolve, Where, did_you_mean
from raypipe.core.digests import stable
from raypipe.core.errors import ConfError
from raypipe.core.protocols import CorpusStep, GraphRef, Model, Step
from raypipe.core.records import Question, SourceKind, digest
from raypipe.recipes.contract import decides, embedder_of, named_by, source_kinds, table_of
from raypipe.steps.bm25 import Bm25
from raypipe.steps.decide import Decide
from raypipe.steps.demote import Demote
from raypipe.steps.dense import Dense
from raypipe.steps.embed import Embed
from raypipe.steps.examples import Examples
from raypipe.steps.extract import Extract
from raypipe.steps.facts import Facts
from raypipe.steps.function_calls import FunctionCalls
from raypipe.steps.fuse import Fuse
from raypipe.steps.generate import Generate
from raypipe.steps.kg_query import KgQuery
from raypipe.steps.match_calls import MatchCalls
from raypipe.steps.parse import Parse
from raypipe.steps.rerank import Rerank
from raypipe.steps.shortlist import Shortlist
from raypipe.steps.split import Split
from raypipe.steps.tokenize import Tokenize

CORPUS_STEPS: Mapping[str, type[CorpusStep]] = MappingProxyType(
    {"parse": Parse, "tokenize": Tokenize, "split": Split, "embed": Embed}
)
QUESTION_STEPS: Mapping[str, type[Step]] = MappingProxyType(
    {
        "shortlist": Shortlist,
        "dense": Dense,
        "bm25": Bm25,
        "fuse": Fuse,
        "rerank": Rerank,
        "extract": Extract,
        "generate": Generate,
        "decide": Decide,
        "match_calls": MatchCalls,
        "function_calls": FunctionCalls,
        "kg_query": KgQuery,
        "demote": Demote,
        "facts": Facts,
        "examples": Examples,
    }
)
STEPS: Mapping[str, type[Any]] = MappingProxyType({**CORPUS_STEPS, **QUESTION_STEPS})

GIVEN = frozenset({"text", "body", "asked_at", "citations"})
"""What a question has before the first step."""

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Stage(Generic[S]):
    """A step at its place in a recipe."""

    name: str  # the verb; with its `into` where that says more: "fuse:final"
    step: S
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # reply -> labels let in

    def digest(self) -> str:
        """Names everything that decides what this stage puts out: class, version, fields and gate."""
        step: Any = self.step
        fields = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
        return digest(type(step).__name__, stable(step.version), stable(fields), stable(dict(self.when)))

    def admits(self, question: Question) -> bool:
        """True if every reply that the gate names has a label in its list."""
        return all(
            r in question.replies and question.replies[r].label in labels for r, labels in self.when.items()
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """One system. Make it with `load` or `from_tree`: they check it."""

    name: str  # not identity
    about: str  # one sentence for people; not identity
    corpus: tuple[Stage[CorpusStep], ...]
    question: tuple[Stage[Step], ...]

    def digest(self) -> str:
        """Names what is computed, end to end."""
        return digest("recipe", *(s.digest() for s in self.corpus), "/", *(s.digest() for s in self.question))

    def texts_digest(self) -> str:
        """Names the parsed sources: the corpus stages before the split."""
        return digest("texts", *(s.digest() for s in self.corpus if table_of(s.step) == "texts"))

    def passages_digest(self) -> str:
        """Names the passages: the parsed sources and the split."""
        return digest("passages", *(s.digest() for s in self.corpus if table_of(s.step) != "vectors"))

    def vectors_digest(self, model: Model) -> str:
        """Names the searched copy of one embedder's vectors."""
        stage = next(s for s in self._embedding() if embedder_of(s.step) == model)
        return digest("vectors", self.passages_digest(), stage.digest())

    def embedders(self) -> tuple[Model, ...]:
        """The models whose vectors are searched."""
        return tuple(embedder_of(s.step) for s in self._embedding())

    def _embedding(self) -> list[Stage[CorpusStep]]:
        return [s for s in self.corpus if table_of(s.step) == "vectors"]

    def source_kinds(self) -> tuple[SourceKind, ...]:
        """The kinds of sources that can be searched."""
        named = [k for s in self.corpus if (k := source_kinds(s.step)) is not None]
        return named[0] if named else get_args(SourceKind)

    def models(self) -> tuple[Model, ...]:
        """Every model that a step names, each once, in the order in which they are met."""
        return tuple(v for v in named_by(*self._steps()) if isinstance(v, Model))

    def graphs(self) -> tuple[GraphRef, ...]:
        """Every knowledge graph that a step names, each once."""
        return tuple(v for v in named_by(*self._steps()) if isinstance(v, GraphRef))

    def _steps(self) -> list[Step | CorpusStep]:
        return [s.step for s in (*self.corpus, *self.question)]


RANKING = ("order", "hits", "citations")
"""What a step that ranks writes, or the begin of it."""


def ranking_of(recipe: Recipe) -> Recipe:
    """The steps that rank, and those whose replies they read, without the steps that only answer.

    Every question is ranked, also one that another reply would keep from the steps that rank.
    Raises ConfError for a recipe that ranks nothing."""
    needed: set[str] = set()
    kept: list[Stage[Step]] = []
    for stage in reversed(recipe.question):
        writes = stage.step.writes()
        ranks = any(w.startswith(RANKING) for w in writes)
        if not ranks and needed.isdisjoint(writes):
            continue
        needed |= stage.step.reads()
        if not ranks:
            needed |= {f"replies.{r}" for r in stage.when}
        kept.insert(0, stage)
    if not any(w.startswith(RANKING) for s in kept for w in s.step.writes()):
        raise ConfError(f"recipe {recipe.name!r} has no step that ranks passages")
    said = {w for s in kept for w in s.step.writes()}
    return replace(recipe, question=tuple(_ungated(s, said) for s in kept))


def _ungated(stage: Stage[Step], said: set[str]) -> Stage[Step]:
    """The stage with the gates alone whose replies are still made."""
    when = {r: labels for r, labels in stage.when.items() if f"replies.{r}" in said}
    return replace(stage, when=MappingProxyType(when))


def load(path: Path, resolve: Resolve) -> Recipe:
    """The recipe in a YAML file. `resolve` turns what steps name (models, fitted numbers) into values.

    Raises ConfError with file, path inside it, what was expected and what was found.
    """
    return from_tree(path.stem, config.read_yaml(path), Where(str(path)), resolve)


def from_tree(name: str, tree: Mapping[str, Any], where: Where, resolve: Resolve) -> Recipe:
    """The recipe in an already parsed mapping with the keys about, corpus and question."""
    for key in tree:
        if key not in ("about", "corpus", "question"):
            raise where.error(
                f"unknown field {key!r}; {did_you_mean(str(key), ('about', 'corpus', 'question'))}"
            )
    recipe = Recipe(
        name,
        str(tree.get("about", "")),
        _stages(tree.get("corpus", []), CORPUS_STEPS, where.at("corpus"), resolve),
        _stages(tree.get("question", []), QUESTION_STEPS, where.at("question"), resolve),
    )
    _check(recipe, where)
    return recipe


def _stages(
    tree: Any, table: Mapping[str, type[Any]], where: Where, resolve: Resolve
) -> tuple[Stage[Any], ...]:
    if not isinstance(tree, list):
        raise where.error(f"expected a list of steps, found {config.kind_of(tree)}")
    stages: list[Stage[Any]] = []
    for i, item in enumerate(tree):
        here = where.at(i)
        if isinstance(item, str):
            item = {item: {}}
        if not isinstance(item, dict) or len(item) != 1:
            raise here.error(
                f"expected one step, as `- verb: {{field: value}}`, found {config.kind_of(item)}"
            )
        (verb, fields), *_ = item.items()
        if verb not in table:
            raise here.error(f"unknown step {verb!r}; {did_you_mean(str(verb), table)}")
        fields = dict(fields or {})
        when = _gate(fields.pop("when", {}), here.at(verb).at("when"))
        step = config.build(table[verb], fields, here.at(verb), resolve)
        stages.append(Stage(_stage_name(verb, fields, stages), step, when))
    return tuple(stages)


def _stage_name(verb: str, fields: Mapping[str, Any], before: Sequence[Stage[Any]]) -> str:
    into = fields.get("into", verb)
    name = verb if into == verb else f"{verb}:{into}"
    taken = {s.name for s in before}
    return name if name not in taken else next(n for i in range(2, 99) if (n := f"{name}#{i}") not in taken)


def _gate(tree: Any, where: Where) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(tree, dict):
        raise where.error(
            f"expected a mapping of reply names to lists of labels, found {config.kind_of(tree)}"
        )
    for reply, labels in tree.items():
        if not isinstance(labels, list) or not all(isinstance(x, str) for x in labels):
            raise where.at(reply).error(f"expected a list of labels, found {config.kind_of(labels)}")
    return MappingProxyType({reply: tuple(labels) for reply, labels in tree.items()})


def _check(recipe: Recipe, where: Where) -> None:
    """What a step reads, an earlier one writes. Raises ConfError naming both ends."""
    columns = frozenset({"source", "kind", "content", "fault"})
    for i, stage in enumerate(recipe.corpus):
        _check_reads(stage, stage.step.reads(), columns, where.at("corpus").at(i))
        columns |= stage.step.writes()
        if table_of(stage.step) == "vectors":
            _embedder(stage, where.at("corpus").at(i))
    known = GIVEN | {f"index.{c}" for c in columns}
    for i, q in enumerate(recipe.question):
        here = where.at("question").at(i)
        _check_reads(q, q.step.reads() | {f"replies.{r}" for r in q.when}, known, here)
        if "index.vector" in q.step.reads() and (model := _embedder(q, here)) not in recipe.embedders():
            embedded = ", ".join(m.name for m in recipe.embedders()) or "nothing"
            raise here.error(
                f"{q.name} searches vectors of {model.name!r}; the corpus half embeds {embedded}"
            )
        known |= q.step.writes()
    if not recipe.question or not decides(recipe.question[-1].step):
        raise where.at("question").error("the last step must be decide: it says which reply is the answer")


def _embedder(stage: Stage[Any], where: Where) -> Model:
    """The one embedder of a stage. Raises ConfError for none or several."""
    try:
        return embedder_of(stage.step)
    except ValueError as e:
        raise where.error(f"{stage.name}: {e}") from e


def _check_reads(stage: Stage[Any], reads: frozenset[str], known: frozenset[str], where: Where) -> None:
    for name in sorted(reads - known):
        raise where.error(
            f"{stage.name} reads {name}, which no earlier step writes; {did_you_mean(name, known)}"
        )


def row_key(question: Question, snapshot: str) -> str:
    """Names what a question is answered from: its text, body, time, and evidence.

    The evidence is its citations in order with the fields a recipe can show; where it has none of its own,
    the named corpus snapshot. Two questions with equal keys get equal answers from one recipe.
    """
    if question.citations is None:
        evidence = ["snapshot", snapshot]
    else:
        evidence = [
            part
            for c in question.citations
            for part in (str(c.rank), c.url, c.modified, c.page or "", c.snippet or "", c.name or "")
        ]
    return digest(question.text, question.body, question.asked_at, *evidence)
