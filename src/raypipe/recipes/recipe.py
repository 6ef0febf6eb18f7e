"""A recipe: the description of a question-answering system as data.

A recipe has two lists of frozen steps: the steps of the corpus half prepare sources, those of the question
half answer questions. A recipe determines *what* is computed. Batch sizes, actors, GPUs and addresses are in
the cluster file, and paths of models are in models.yaml. None of these settings is part of a digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar, get_args

from raypipe.core.digests import identifying, stable
from raypipe.core.errors import ConfError
from raypipe.core.plugins import Plugin
from raypipe.core.protocols import CorpusStep, Model, Step
from raypipe.core.records import Fault, Question, SourceKind, digest
from raypipe.core.references import Reference
from raypipe.recipes import step_contract
from raypipe.recipes.step_contract import embedder_of, named, of_turns, table_of
from raypipe.text.template import ByLabel

S = TypeVar("S")

Labels: TypeAlias = tuple[str, ...] | ByLabel[tuple[str, ...]]
"""Reply labels that a gate admits: one list, or one list per label of another reply."""


@dataclass(frozen=True, slots=True)
class Stage(Generic[S]):
    """A step at its place in a recipe, with its gate (the labels that earlier replies must have)."""

    name: str  # the verb, with `into` if it differs: "fuse:final"
    step: S
    when: Mapping[str, Labels] = field(default_factory=dict)  # reply -> admitted labels
    plugin: Plugin | None = None  # origin of the step's class; None: raypipe ships it
    written: str = ""  # digest from a record, if the class was not imported; else ""

    @property
    def verb(self) -> str:
        """The verb in the stage's name: "fuse" for "fuse:final", "rerank" for "rerank#2"."""
        return self.name.partition("#")[0].partition(":")[0]

    def kind(self) -> str:
        """Returns the name of the step's class, or its path MODULE:NAME if it comes from outside raypipe."""
        return type(self.step).__name__ if self.plugin is None else self.plugin.path

    def digest(self) -> str:
        """Returns the digest of all that determines the stage's output: class, version, fields, gate, and the
        source of a class from outside. Leaves out adapters of the model in the field `tokenizer`, because
        this model only counts tokens. If the class was not imported, returns the recorded digest."""
        if self.written:
            return self.written
        step: Any = self.step
        fields = identifying(step)
        if isinstance(counts := fields.get("tokenizer"), Model):
            fields["tokenizer"] = replace(counts.original, adapters=())
        source = () if self.plugin is None else (self.plugin.source,)
        return digest(self.kind(), stable(step.version), stable(fields), stable(dict(self.when)), *source)

    def admits(self, question: Question) -> bool:
        """Returns whether a question has every reply that the gate names, each with an admitted label."""
        return all(
            r in question.replies
            and question.replies[r].label in (x.of(question) if isinstance(x, ByLabel) else x)
            for r, x in self.when.items()
        )

    def gate_reads(self) -> frozenset[str]:
        """Returns the fields that the gate reads: `replies.NAME`."""
        tables = (x.reads() for x in self.when.values() if isinstance(x, ByLabel))
        return frozenset(f"replies.{r}" for r in self.when).union(*tables)


def faults_at(stage: Stage[Step], question: Question) -> list[Fault]:
    """Returns the faults that a stage put on a question, then the faults of the replies that it writes."""
    into = named(stage.step.writes(), "replies")
    names = {stage.name, *(f"{stage.verb}:{name}" for name in into)}
    replies = (question.replies[name].fault for name in into if name in question.replies)
    return [f for f in question.faults if f.step in names] + [f for f in replies if f is not None]


def titled(name: str, sets: Sequence[str]) -> str:
    return f"{name} ({', '.join(sets)})" if sets else name


@dataclass(frozen=True, slots=True)
class Recipe:
    """A question-answering system as data. `read_recipe.load` and `read_recipe.from_tree` check it."""

    name: str  # name for people; not identity
    about: str  # one sentence for people; not identity
    corpus: tuple[Stage[CorpusStep], ...]
    question: tuple[Stage[Step], ...]
    file: str = ""  # path that it was read from; not identity
    sets: tuple[str, ...] = ()  # the --set arguments, already applied to the steps; not identity

    @property
    def title(self) -> str:
        return titled(self.name, self.sets)

    def digest(self) -> str:
        """Returns the digest of the recipe's stages, except stages that act only on earlier turns."""
        asked = (s.digest() for s in self.question if not of_turns(s.step))
        return digest("recipe", *(s.digest() for s in self.corpus), "/", *asked)

    def turns_digest(self) -> str:
        """Returns the digest of the stages that act only on earlier turns; "" if the recipe has none."""
        steps = [s.digest() for s in self.question if of_turns(s.step)]
        return digest("turns", *steps) if steps else ""

    @property
    def texts_table(self) -> str:
        """Name of the table of parsed sources. It contains the digest of the stages before the split."""
        return f"texts-{digest('texts', *(s.digest() for s in self.corpus if table_of(s.step) == 'texts'))}"

    def passages_digest(self) -> str:
        """Returns the digest of the stages that parse and split. It names the table of passages."""
        return digest("passages", *(s.digest() for s in self.corpus if table_of(s.step) != "vectors"))

    @property
    def passages_table(self) -> str:
        return f"passages-{self.passages_digest()}"

    def vectors_table(self, model: Model) -> str:
        """Returns the name of the table that holds the vectors of the embedder `model` for searches."""
        stage = next(s for s in self._embedding() if embedder_of(s.step) == model)
        half = ["float16"] if model.half else []
        return f"vectors-{digest('vectors', self.passages_digest(), stage.digest(), *half)}"

    @property
    def embeds_from_texts(self) -> bool:
        """True if an embedding step reads the whole text of a chunk's source, not only the chunk."""
        return any("text" in s.step.reads() for s in self._embedding())

    def embedders(self) -> tuple[Model, ...]:
        return tuple(embedder_of(s.step) for s in self._embedding())

    def writers(self) -> tuple[Model, ...]:
        """Returns the language models that the corpus half calls."""
        models = step_contract.named_by(Model, *(s.step for s in self.corpus))
        return tuple(m for m in models if m.kind == "generator")

    def unread(self) -> list[str]:
        """Returns a warning for each embedder that reads fewer tokens than a passage may have. Checks only a
        split with the field `tokens`: a passage limited in characters gives no warning."""
        most = max((getattr(s.step, "tokens", None) or 0 for s in self.corpus), default=0)
        return [
            f"{m.name} reads {m.max_tokens} tokens: the end of a passage of {most} is not in its vector"
            for m in self.embedders()
            if most > m.max_tokens
        ]

    def _embedding(self) -> list[Stage[CorpusStep]]:
        return [s for s in self.corpus if table_of(s.step) == "vectors"]

    def source_kinds(self) -> tuple[SourceKind, ...]:
        named = (k for s in self.corpus if (k := step_contract.source_kinds(s.step)) is not None)
        return next(named, get_args(SourceKind))

    def searches_all(self) -> bool:
        """Returns whether a step searches the whole store even for questions with citations."""
        return any(step_contract.searches_all(s.step) for s in self.question)

    def conditions(self) -> dict[str, str]:
        """Maps the name of each stage with a condition (field `where` of its step) to that condition."""
        return {s.name: where for s in self.question if (where := getattr(s.step, "where", ""))}

    def needs_passages(self) -> bool:
        """Returns whether passages are the recipe's only evidence. True if a step reads the index and no step
        names a reference, such as a graph, that brings evidence."""
        return bool(self._of_index()) and not any(ref.is_evidence for ref in self.named(Reference))

    def reads_cited_alone(self) -> bool:
        """Returns whether the recipe reads the cited sources and searches nothing. Such a recipe has no
        evidence for a question without citations."""
        return self.needs_passages() and self._of_index() <= OF_FOUND

    def _of_index(self) -> set[str]:
        return {field for s in self.question for field in s.step.reads() if field.startswith("index.")}

    def models(self) -> tuple[Model, ...]:
        """Returns every model that a step names, each once, in order, except absent ones (loader: none)."""
        return tuple(self.named(Model))

    def chats(self) -> list[step_contract.ChatKind]:
        return step_contract.chat_kinds(*(s.step for s in (*self.corpus, *self.question)))

    def named(self, kind: type[step_contract.N]) -> list[step_contract.N]:
        """Returns the models, or the references, that the steps name: see `step_contract.named_by`."""
        return step_contract.named_by(kind, *(s.step for s in (*self.corpus, *self.question)))


OF_FOUND = {"index.text", "index.hidden", "index.blocks", "index.layouts"}
"""Fields of the index that describe cited or found sources. Any other field is read by a search."""


def row_key(question: Question, snapshot: str, everything: bool = False, turns: str = "") -> str:
    """Returns the key of a question's answer. Questions with equal keys get equal answers from one recipe.

    The key covers text, body, time and evidence. The evidence is the citations in order, with the fields that
    a recipe can show. `snapshot` is the digest of all sources that the store searches. It is part of the
    evidence if the question's citations are None, if the question has a condition `where`, or if `everything`
    is true (the recipe searches the whole store). `turns` is `Recipe.turns_digest`. If `turns` is not empty
    and the question has earlier turns, the key also covers the earlier turns and `turns`."""
    evidence = [
        part
        for c in question.citations or ()
        for part in (str(c.rank), c.url, c.modified, c.page or "", c.snippet or "", c.name or "")
    ]
    if question.citations is None or everything or question.where:
        evidence += ["snapshot", snapshot]
    if question.where:
        evidence += ["where", question.where]
    if turns and question.turns:
        evidence += ["turns", turns, *(part for t in question.turns for part in (t.role, t.text))]
    return digest(question.text, question.body, question.asked_at, *evidence)


RANKING = ("order", "hits", "citations")
"""Fields, or beginnings of fields, that a ranking step writes."""


def ranking_of(recipe: Recipe) -> Recipe:
    """Reduces a recipe to the stages that rank, and to the stages whose output the ranking stages need. A
    gate that reads the reply of a dropped stage is dropped, too. So a question is ranked even if that gate
    would keep it out. Raises ConfError if the recipe ranks nothing."""
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
    written = {w for s in kept for w in s.step.writes()}
    if not any(w.startswith(RANKING) for w in written):
        raise ConfError(f"recipe {recipe.name!r} has no step that ranks passages")
    ungated = []
    for stage in kept:  # drops the gates that read a reply of a dropped step
        when = {r: x for r, x in stage.when.items() if replace(stage, when={r: x}).gate_reads() <= written}
        ungated.append(replace(stage, when=MappingProxyType(when)))
    return replace(recipe, question=tuple(ungated))
