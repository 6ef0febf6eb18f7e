"""A recipe: a system as data, two lists of frozen steps with their gates and digests.

*What* is computed stands here and nowhere else. Batch sizes, actors, GPUs, paths and addresses are not here:
they stand in the cluster file and change nothing in a digest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar, get_args

from raypipe.core import config
from raypipe.core.config import Resolve, Where, did_you_mean
from raypipe.core.digests import identifying, stable
from raypipe.core.errors import ConfError
from raypipe.core.examples import PoolRef
from raypipe.core.kg import FactsRef
from raypipe.core.plugins import Plugin, is_path
from raypipe.core.protocols import CorpusStep, GraphRef, Model, Step
from raypipe.core.records import Question, SourceKind, digest
from raypipe.recipes.fits import misfitted
from raypipe.recipes.step_contract import (
    decides,
    embedder_of,
    named_by,
    searches_all,
    source_kinds,
    step_class,
    table_of,
)
from raypipe.steps.bm25 import Bm25
from raypipe.steps.clean import Clean
from raypipe.steps.compress import Compress
from raypipe.steps.decide import Decide
from raypipe.steps.demote import Demote
from raypipe.steps.dense import Dense
from raypipe.steps.embed import Embed
from raypipe.steps.embed_document import EmbedDocument
from raypipe.steps.examples import Examples
from raypipe.steps.extract import Extract
from raypipe.steps.facts import Facts
from raypipe.steps.function_calls import FunctionCalls
from raypipe.steps.fuse import Fuse
from raypipe.steps.generate import Generate
from raypipe.steps.iterate import Iterate
from raypipe.steps.kg_query import KgQuery
from raypipe.steps.match_calls import MatchCalls
from raypipe.steps.parse import Parse
from raypipe.steps.rerank import Rerank
from raypipe.steps.shortlist import Shortlist
from raypipe.steps.similarity import Similarity
from raypipe.steps.split import Split
from raypipe.steps.tokenize import Tokenize
from raypipe.text.by_label import ByLabel

CORPUS_STEPS: Mapping[str, type[CorpusStep]] = MappingProxyType(
    {
        "parse": Parse,
        "clean": Clean,
        "tokenize": Tokenize,
        "split": Split,
        "embed": Embed,
        "embed_document": EmbedDocument,
    }
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
        "iterate": Iterate,
        "compress": Compress,
        "similarity": Similarity,
    }
)
STEPS: Mapping[str, type[Any]] = MappingProxyType({**CORPUS_STEPS, **QUESTION_STEPS})

GIVEN = frozenset({"text", "body", "asked_at", "citations"})
"""What a question has before the first step."""

S = TypeVar("S")
Labels: TypeAlias = tuple[str, ...] | ByLabel[tuple[str, ...]]
"""Labels of a reply that a gate lets in: one list, or one for each label of another reply."""


@dataclass(frozen=True, slots=True)
class Stage(Generic[S]):
    """A step at its place in a recipe."""

    name: str  # the verb; with its `into` where that says more: "fuse:final"
    step: S
    when: Mapping[str, Labels] = field(default_factory=dict)  # reply -> labels let in
    plugin: Plugin | None = None  # where the step's class comes from; None: raypipe ships it
    written: str = ""  # digest that a manifest has of the stage, if its class was not imported

    def kind(self) -> str:
        """What names the class of its step: its name, or its path if it comes from outside."""
        return type(self.step).__name__ if self.plugin is None else self.plugin.path

    def digest(self) -> str:
        """Names everything that decides what this stage puts out: class, version, fields and gate, and the
        source of a class from outside. A tokenizer counts the same whatever adapters its model has."""
        if self.written:
            return self.written
        step: Any = self.step
        fields = identifying(step)
        if isinstance(counts := fields.get("tokenizer"), Model):
            fields["tokenizer"] = replace(counts, adapters=())
        source = () if self.plugin is None else (self.plugin.source,)
        return digest(self.kind(), stable(step.version), stable(fields), stable(dict(self.when)), *source)

    def admits(self, question: Question) -> bool:
        """True if every reply that the gate names has a label in its list."""
        return all(
            r in question.replies
            and question.replies[r].label in (x.of(question) if isinstance(x, ByLabel) else x)
            for r, x in self.when.items()
        )

    def gate_reads(self) -> frozenset[str]:
        """The replies that the gate looks at."""
        tables = [x.reads() for x in self.when.values() if isinstance(x, ByLabel)]
        return frozenset(f"replies.{r}" for r in self.when).union(*tables)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One system. Make it with `load` or `from_tree`: they check it."""

    name: str  # not identity
    about: str  # one sentence for people; not identity
    corpus: tuple[Stage[CorpusStep], ...]
    question: tuple[Stage[Step], ...]
    file: str = ""  # that it was read from; not identity
    sets: tuple[str, ...] = ()  # fields that --set gave in place of the file's; not identity: the steps are

    @property
    def title(self) -> str:
        """Its name, with what --set gave."""
        return f"{self.name} ({', '.join(self.sets)})" if self.sets else self.name

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
        return digest("vectors", self.passages_digest(), stage.digest(), *(["float16"] if model.half else []))

    def embedders(self) -> tuple[Model, ...]:
        """The models whose vectors are searched."""
        return tuple(embedder_of(s.step) for s in self._embedding())

    def _embedding(self) -> list[Stage[CorpusStep]]:
        return [s for s in self.corpus if table_of(s.step) == "vectors"]

    def source_kinds(self) -> tuple[SourceKind, ...]:
        """The kinds of sources that can be searched."""
        named = [k for s in self.corpus if (k := source_kinds(s.step)) is not None]
        return named[0] if named else get_args(SourceKind)

    def searches_all(self) -> bool:
        """Whether a step searches the whole store whatever a question cites."""
        return any(searches_all(s.step) for s in self.question)

    def models(self) -> tuple[Model, ...]:
        """Every model that a step names, each once, in the order in which they are met."""
        return tuple(v for v in named_by(*self._steps()) if isinstance(v, Model))

    def graphs(self) -> tuple[GraphRef, ...]:
        """Every knowledge graph that a step names, each once."""
        return tuple(v for v in named_by(*self._steps()) if isinstance(v, GraphRef))

    def public_data(self) -> tuple[FactsRef, ...]:
        """Every table of public data that a step names, each once."""
        return tuple(v for v in named_by(*self._steps()) if isinstance(v, FactsRef))

    def pools(self) -> tuple[PoolRef, ...]:
        """Every pool of examples that a step names, each once."""
        return tuple(v for v in named_by(*self._steps()) if isinstance(v, PoolRef))

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
            needed |= stage.gate_reads()
        kept.insert(0, stage)
    if not any(w.startswith(RANKING) for s in kept for w in s.step.writes()):
        raise ConfError(f"recipe {recipe.name!r} has no step that ranks passages")
    said = {w for s in kept for w in s.step.writes()}
    return replace(recipe, question=tuple(_ungated(s, said) for s in kept))


def _ungated(stage: Stage[Step], said: set[str]) -> Stage[Step]:
    """The stage with the gates alone whose replies are still made."""
    gates = {r: replace(stage, when={r: labels}) for r, labels in stage.when.items()}
    when = {r: stage.when[r] for r, gate in gates.items() if gate.gate_reads() <= said}
    return replace(stage, when=MappingProxyType(when))


def load(path: Path, resolve: Resolve, find: Callable[[str], Path] | None = None) -> Recipe:
    """The recipe in a YAML file. `resolve` turns what steps name (models, fitted numbers) into values;
    `find` gives the file of a recipe that this one is a variant of, None: one in the same folder.

    Raises ConfError with file, path inside it, what was expected and what was found.
    """
    return from_tree(path.stem, read_tree(path, find), Where(str(path)), resolve)


def read_tree(path: Path, find: Callable[[str], Path] | None = None) -> dict[str, Any]:
    """The mapping in a recipe's file; of a variant the whole recipe's, with what the variant sets. Raises as
    `load`."""
    tree = config.read_yaml(path)
    if "like" in tree:
        return _variant(tree, Where(str(path)), find or (lambda name: path.with_name(f"{name}.yaml")))
    return tree


def _variant(tree: Mapping[str, Any], where: Where, find: Callable[[str], Path]) -> dict[str, Any]:
    """The tree of the recipe that a variant is like, with the fields that it sets, named stage.field."""
    for key in tree:
        if key not in ("about", "like", "set"):
            raise where.error(
                f"unknown field {key!r} of a variant; {did_you_mean(str(key), ('about', 'like', 'set'))}"
            )
    if not isinstance(tree["like"], str) or not isinstance(tree.get("set"), dict):
        raise where.error("expected like, the name of a recipe, and set, a mapping of stage.field")
    whole = config.read_yaml(find(tree["like"]))
    if "like" in whole:
        raise where.at("like").error(f"{tree['like']!r} is a variant itself; expected a whole recipe")
    stages: dict[str, dict[str, Any]] = {}
    for half, table in (("corpus", CORPUS_STEPS), ("question", QUESTION_STEPS)):
        whole[half] = [dict(i) if isinstance(i, dict) else {i: {}} for i in whole.get(half, [])]
        for item in whole[half]:
            (verb, fields), *_ = item.items()
            item[verb] = dict(fields or {})
            _, plugin = stage_class(verb, table, where.at("like"))
            stages[stage_name(verb if plugin is None else plugin.name, item[verb], stages)] = item[verb]
    for name, value in tree["set"].items():
        stage, _, field_name = str(name).rpartition(".")
        if stage not in stages:
            raise where.at("set").error(f"{name!r}: no stage {stage!r}; {did_you_mean(stage, stages)}")
        stages[stage][field_name] = value
    return {**whole, "about": tree.get("about", whole.get("about", ""))}


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
        read_stages(tree.get("corpus", []), CORPUS_STEPS, where.at("corpus"), resolve),
        read_stages(tree.get("question", []), QUESTION_STEPS, where.at("question"), resolve),
    )
    return checked(recipe, where)


def checked(recipe: Recipe, where: Where) -> Recipe:
    """The same recipe. Raises ConfError where its steps do not fit together."""
    _check(recipe, where)
    return recipe


def read_stages(
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
        cls, plugin = stage_class(verb, table, here)
        fields = dict(fields or {})
        when = read_gate(fields.pop("when", {}), here.at(verb).at("when"))
        step = config.build(cls, fields, here.at(verb), resolve)
        name = stage_name(verb if plugin is None else plugin.name, fields, {s.name for s in stages})
        stages.append(Stage(name, step, when, plugin))
    return tuple(stages)


def stage_class(verb: Any, table: Mapping[str, type[Any]], where: Where) -> tuple[type[Any], Plugin | None]:
    """The class of a verb of the table, or of one from outside."""
    if is_path(verb):
        try:
            return step_class(verb)
        except ConfError as e:
            raise where.error(str(e)) from e
    if verb not in table:
        raise where.error(f"unknown step {verb!r}; {did_you_mean(str(verb), table)}")
    return table[verb], None


def stage_name(verb: str, fields: Mapping[str, Any], taken: Collection[str]) -> str:
    """The name of a stage of this verb, which none of those before it has."""
    into = fields.get("into", verb)
    name = verb if into == verb else f"{verb}:{into}"
    return name if name not in taken else next(n for i in range(2, 99) if (n := f"{name}#{i}") not in taken)


def read_gate(tree: Any, where: Where) -> Mapping[str, Labels]:
    if not isinstance(tree, dict):
        raise where.error(
            f"expected a mapping of reply names to lists of labels, found {config.kind_of(tree)}"
        )
    return MappingProxyType({reply: _let_in(labels, where.at(reply)) for reply, labels in tree.items()})


def _let_in(tree: Any, where: Where) -> Labels:
    """A list of labels, or `{by: REPLY, LABEL: list, ..., else: list}`."""
    if not isinstance(tree, dict):
        return _labels(tree, where)
    if not isinstance(tree.get("by"), str) or "else" not in tree:
        raise where.error("expected a list of labels, or a table of such lists with `by` and `else`")
    table = {k: _labels(v, where.at(k)) for k, v in tree.items() if k not in ("by", "else")}
    return ByLabel(_labels(tree["else"], where.at("else")), tree["by"], table)


def _labels(tree: Any, where: Where) -> tuple[str, ...]:
    if not isinstance(tree, list) or not all(isinstance(x, str) for x in tree):
        raise where.error(f"expected a list of labels, found {config.kind_of(tree)}")
    return tuple(tree)


def _check(recipe: Recipe, where: Where) -> None:
    """Raises the first of `misfits`."""
    for error in misfits(recipe, where):
        raise error


def misfits(recipe: Recipe, where: Where) -> Iterator[ConfError]:
    """Where steps do not fit together: what a step reads, an earlier one writes. Each names both ends."""
    columns = frozenset({"source", "kind", "content", "fault"})
    for i, stage in enumerate(recipe.corpus):
        here = where.at("corpus").at(i)
        yield from _unwritten(stage, stage.step.reads(), columns, here)
        columns |= stage.step.writes()
        if table_of(stage.step) == "vectors":
            yield from _refused(partial(_embedder, stage, here))
    known = GIVEN | {f"index.{c}" for c in columns}
    for i, q in enumerate(recipe.question):
        here = where.at("question").at(i)
        yield from _unwritten(q, q.step.reads() | q.gate_reads(), known, here)
        if "index.vector" in q.step.reads():
            yield from _refused(partial(_require_embedded, recipe, q, here))
        known |= q.step.writes()
    yield from _small_pools(recipe, where)
    yield from misfitted(recipe, where.at("question"))
    yield from _refused(partial(_check_end, recipe, where.at("question")))


def _check_end(recipe: Recipe, where: Where) -> None:
    """A recipe ends with decide, or it ranks: then each of its steps ranks, or a later one reads what it
    writes. Raises ConfError otherwise."""
    deciding = [i for i, s in enumerate(recipe.question) if decides(s.step)]
    if deciding[-1:] == [len(recipe.question) - 1] and deciding:
        return
    if deciding or not recipe.question:
        raise where.error("the last step must be decide: it says which reply is the answer")
    kept = {s.name for s in ranking_of(recipe).question}
    for i, stage in enumerate(recipe.question):
        if stage.name not in kept:
            raise where.at(i).error(
                f"{stage.name} does not help to rank, and no decide takes its reply: remove it, or end with "
                "decide"
            )


def _refused(check: Callable[[], object]) -> Iterator[ConfError]:
    """What a check raises."""
    try:
        check()
    except ConfError as e:
        yield e


def _require_embedded(recipe: Recipe, stage: Stage[Any], where: Where) -> None:
    """Raises ConfError for a step that searches vectors of a model that embeds nothing."""
    if (model := _embedder(stage, where)) not in recipe.embedders():
        embedded = ", ".join(m.name for m in recipe.embedders()) or "nothing"
        raise where.error(
            f"{stage.name} searches vectors of {model.name!r}; the corpus half embeds {embedded}"
        )


def _small_pools(recipe: Recipe, where: Where) -> Iterator[ConfError]:
    """A pool holds at least what is looked for in it: WeKnow's K >= M + N."""
    searches = [(i, s) for i, s in enumerate(recipe.question) if getattr(s.step, "among", ())]
    for i, pool in enumerate(recipe.question):
        name: str | None = getattr(pool.step, "into", None)
        inside = [(j, s) for j, s in searches if j > i and name in getattr(s.step, "among", ())]
        wanted = sum(getattr(s.step, "top", 0) for _, s in inside)
        if inside and (kept := getattr(pool.step, "top", wanted)) < wanted:
            names = " and ".join(s.name for _, s in inside)
            yield (
                where.at("question")
                .at(i)
                .error(
                    f"{pool.name} keeps {kept} passages and {names} look for {wanted} among them; "
                    f"expected top: {wanted} or more"
                )
            )


def _embedder(stage: Stage[Any], where: Where) -> Model:
    """The one embedder of a stage. Raises ConfError for none or several."""
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


def row_key(question: Question, snapshot: str, everything: bool = False) -> str:
    """Names what a question is answered from: its text, body, time, and evidence.

    The evidence is its citations in order with the fields a recipe can show; where it has none of its own,
    the named corpus snapshot; with `everything` both. Two questions with equal keys get equal answers from
    one recipe.
    """
    evidence = [
        part
        for c in question.citations or ()
        for part in (str(c.rank), c.url, c.modified, c.page or "", c.snippet or "", c.name or "")
    ]
    if question.citations is None or everything:
        evidence += ["snapshot", snapshot]
    return digest(question.text, question.body, question.asked_at, *evidence)
