"""Holds answered questions against their golds while they pass: where each was lost, how they were routed.

Reads passages, parsed texts and sources of the store, for the questions whose gold is not in what comes
later: an answer that has it is not looked through any further. A question whose golds are judged documents is
right if one is among the first ten (`metrics.kinds`); where none is, they are looked for in ranking,
hits, passages and store. Runs no model and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from raypipe.core.arrow import id_texts
from raypipe.core.bounded_rows import batches
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.index import Index
from raypipe.core.protocols import Kit, Step
from raypipe.core.records import FAULT, RANKED, SKIPPED, SKIPPED_REPLY, Gold, Question
from raypipe.evaluation.loss_paths import GoldEvidence, RecipePaths, SourcesHolding, evidence_path
from raypipe.metrics.losses import GoldText, LostAt, Routing, read_through, router_scores
from raypipe.metrics.overlap import normalized
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import Shown, shown_of
from raypipe.runs.pipeline.driver import Pipeline

AT_ONCE = 10  # questions whose passages are in memory: some 400 kB each with 200 hits of 2,000 characters
PAGES_AT_ONCE = 8  # sources whose content is: some 300 kB each


class LossFinder:
    """Finds the places of the questions of a run, a batch at a time, and of the rest at the end.

    `notes` say what could not be told apart, for people.
    """

    def __init__(self, pipeline: Pipeline, index: Index, kit: Kit) -> None:
        self.notes: list[str] = []
        self._pipeline, self._index = pipeline, index
        self._paths = RecipePaths(pipeline.recipe)
        self._shown: list[tuple[Stage[Step], Shown]] = []
        for stage in self._paths.showing:
            try:
                self._shown.append((stage, shown_of(stage.step, kit)))
            except (ConfError, ModelMissing) as e:
                self.notes.append(f"{stage.name}: its context is not known, so none is lost at answer: {e}")
        self._waiting: dict[str, GoldEvidence] = {}  # that may search everything; no hit holds their gold

    async def of(
        self, pairs: Sequence[tuple[Question, Question]], golds: Mapping[str, Gold]
    ) -> dict[str, LostAt]:
        """Question id -> where its gold was lost, should its answer not be right. `pairs`: as it was asked,
        and answered. None of questions without a gold answer, that failed, or that `rest` has."""
        rows = [
            GoldEvidence(asked, answered, GoldText(golds[asked.id].answers), golds[asked.id].labels)
            for asked, answered in pairs
            if asked.id in golds and golds[asked.id].answers and answered.outcome not in ("", FAULT, RANKED)
        ]
        found: dict[str, LostAt] = {}
        for some in batches(rows, AT_ONCE):
            near = [e for e in some if not e.gold.said(e.answered.answer)]
            seen = {e.asked.id: e for e in await self._evidence(near)}
            for e in (seen.get(e.asked.id, e) for e in some):
                if self._paths.searched(e.asked) is None and self._paths.needs_sources(e):
                    self._waiting[e.asked.id] = replace(e, sources=SourcesHolding())
                else:
                    found[e.asked.id] = self._paths.place(e)
        return found

    def rest(self) -> dict[str, LostAt]:
        """The same of the questions that may search everything: one pass over the store for all of them."""
        if self._waiting:
            self._search()
        waiting, self._waiting = self._waiting, {}
        return {id: self._paths.place(e) for id, e in waiting.items()}

    async def _evidence(self, rows: Sequence[GoldEvidence]) -> list[GoldEvidence]:
        chunks = list(dict.fromkeys(h.chunk for e in rows for h in e.answered.hits))
        texts = dict(zip(chunks, await self._index.texts(chunks), strict=True))
        held_by = [[h.chunk for h in e.answered.hits if e.gold.held(texts[h.chunk])] for e in rows]
        out = [replace(e, passages=frozenset(c)) for e, c in zip(rows, held_by, strict=True)]
        for stage, shown in self._shown:
            at = [i for i, e in enumerate(out) if e.answered.order and self._paths.replied(stage, e.answered)]
            said = await shown([out[i].answered for i in at]) if at else []
            for i, text in zip(at, said, strict=True):
                held = out[i].gold.held(text)
                out[i] = replace(out[i], shown={**out[i].shown, stage.name: held})
        return [await self._with_sources(e) for e in out]

    async def _with_sources(self, e: GoldEvidence) -> GoldEvidence:
        """With what its sources hold, where no hit holds the gold and it has sources of its own."""
        cited = self._paths.searched(e.asked)
        if cited is None or not self._paths.needs_sources(e):
            return e
        texts = dict(zip(cited, await self._index.source_texts(cited), strict=True))
        held = {s: text for s, text in texts.items() if text is not None and e.gold.held(text)}
        if held:
            found = SourcesHolding(True, frozenset(held), self._whole(held, e.gold))
            return replace(e, sources=found)
        rows, pages = self._pipeline.store.rows, batches(cited, PAGES_AT_ONCE)
        read = (rows("sources", "id", some, ["content"])["content"].to_pylist() for some in pages)
        said = any(e.gold.in_source(content) for contents in read for content in contents)
        return replace(e, sources=SourcesHolding(said))

    def _whole(self, texts: Mapping[str, str], gold: GoldText) -> frozenset[str]:
        """The sources with a passage that holds all of the gold."""
        p, columns = self._pipeline, ["source", "parent_start", "parent_end"]
        found = p.store.rows(p.recipe.passages_table, "source", list(texts), columns)
        spans = set(zip(*map(id_texts, found.columns), strict=True))
        return frozenset(s for s, start, end in spans if gold.held(texts[s][start:end]))

    def _search(self) -> None:
        """Reads all texts once and notes those that hold a gold, until a passage of one does; and one
        over all sources, for the golds that no text holds."""
        p, waiting = self._pipeline, self._waiting
        near = _by_first_word(waiting.values())
        for batch in p.store.batches(p.recipe.texts_table, ["source", "text"]):
            for row in batch.to_pylist():
                source, text = row["source"].hex(), row["text"] or ""
                for id in _likely(text, near):
                    e, found = waiting[id], waiting[id].sources or SourcesHolding()
                    if not found.passages and e.gold.held(text):
                        whole = self._whole({source: text}, e.gold)
                        found = SourcesHolding(True, found.texts | {source}, found.passages | whole)
                        waiting[id] = replace(e, sources=found)
        if not (near := _by_first_word([e for e in waiting.values() if e.sources == SourcesHolding()])):
            return
        for batch in p.store.batches("sources", ["content"], PAGES_AT_ONCE):
            for text in (t for content in batch["content"].to_pylist() for t in read_through(content)):
                for id in _likely(text, near):
                    if waiting[id].sources == SourcesHolding() and waiting[id].gold.held(text):
                        waiting[id] = replace(waiting[id], sources=SourcesHolding(True))


def _by_first_word(waiting: Iterable[GoldEvidence]) -> dict[str, list[str]]:
    """First word of a truth -> ids of the questions that look for it; "": those that any text may answer."""
    near: dict[str, list[str]] = {}
    for e in waiting:
        for truth in e.gold.truths:
            words = normalized(truth).split()
            near.setdefault("" if e.gold.judgement or not words else words[0], []).append(e.asked.id)
    return near


def _likely(text: str, near: Mapping[str, list[str]]) -> Iterator[str]:
    """The questions of which a text has the first word."""
    for word in {*normalized(text).split(), ""} & near.keys():
        yield from near[word]


def misses(found: Mapping[str, LostAt], right: Mapping[str, bool | None]) -> dict[str, LostAt]:
    """The places of the questions alone whose answer is wrong, as the table of results has them."""
    return {id: at for id, at in found.items() if right.get(id) is False}


class RankingLossFinder:
    """The same for questions whose golds are judged documents. `notes` stays empty."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.notes: list[str] = []
        self._pipeline, self._paths = pipeline, RecipePaths(pipeline.recipe)

    async def of(
        self, pairs: Sequence[tuple[Question, Question]], golds: Mapping[str, Gold]
    ) -> dict[str, LostAt]:
        """Question id -> where its relevant documents were lost, should none be among the first. `pairs`: as
        it was asked, and answered. None of questions without a relevant document."""
        relevant = {
            asked.id: {d for d, grade in golds[asked.id].grades.items() if grade > 0}
            for asked, _ in pairs
            if asked.id in golds
        }
        p, ids = self._pipeline, sorted({d for some in relevant.values() for d in some})
        rows = p.store.rows("documents", "id", ids, ["id", "source"])
        source_of = dict(zip(*map(id_texts, rows.columns), strict=True))
        found = {}
        for asked, answered in pairs:
            if documents := relevant.get(asked.id):
                sources = {source_of[d] for d in documents if d in source_of}
                if (searched := self._paths.searched(asked)) is not None:
                    sources &= set(searched)
                passages = frozenset(h.chunk for h in answered.hits if h.source in sources)
                held, ids = SourcesHolding(), sorted(sources)
                if not passages:  # which have a text, and passages
                    texts = p.store.rows(p.recipe.texts_table, "source", ids, ["source", "text"]).to_pylist()
                    columns = ["source", "start", "end"]
                    spans = p.store.rows(p.recipe.passages_table, "source", ids, columns).to_pylist()
                    full = frozenset(r["source"].hex() for r in texts if (r["text"] or "").strip())
                    cut = frozenset(r["source"].hex() for r in spans if r["end"] > r["start"])
                    held = SourcesHolding(bool(ids), full, cut)
                evidence = GoldEvidence(asked, answered, GoldText(()), passages=passages, sources=held)
                found[asked.id] = self._paths.place_of_documents(evidence)
        return found

    def rest(self) -> dict[str, LostAt]:
        """Nothing is left to look for."""
        return {}


class RoutingCheck:
    """Counts, question by question, what golds say of replies."""

    def __init__(self, recipe: Recipe) -> None:
        self._confusion: dict[str, dict[str, Counter[str]]] = {}  # reply -> label of the gold, of the reply
        self._path = evidence_path(recipe)

    def add(self, question: Question, gold: Gold) -> None:
        for name, label in gold.labels.items():
            said = question.replies.get(name, SKIPPED_REPLY).label
            if said not in (SKIPPED, FAULT):
                self._confusion.setdefault(name, {}).setdefault(label, Counter())[said] += 1
        if self._path is not None:
            self._path.add(question, gold)

    def found(self) -> Routing:
        return Routing(router_scores(self._confusion), None if self._path is None else self._path.score())
