"""Finders of the stage at which each wrong answer lost its gold, and scores of routers against gold labels.

LossFinder looks for the gold in each question's passages, contexts of replies, and sources.
`loss_paths.RecipePaths` turns this evidence into a place, for right and wrong answers; `misses` keeps the
places of wrong answers. RankingLossFinder finds places for judged documents.

The store is read as little as possible: no passages if the answer has the gold, no sources if a passage has
the gold. No model runs, and the store is not changed.
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
PAGES_AT_ONCE = 8  # sources whose content is in memory together: some 300 kB each


class LossFinder:
    """Finder of the places where gold answers were lost. Call `of` for each batch of questions, then `rest`
    once. `of` postpones questions whose golds must be sought in the whole store; `rest` reads the store once
    for all of these. `notes` has a line for each stage at which no loss can be located."""

    def __init__(self, pipeline: Pipeline, index: Index, kit: Kit) -> None:
        self.notes: list[str] = []
        self._pipeline, self._index = pipeline, index
        self._paths = RecipePaths(pipeline.recipe)
        self._contexts: list[tuple[Stage[Step], Shown]] = []
        for stage in self._paths.showing:
            try:
                self._contexts.append((stage, shown_of(stage.step, kit)))
            except (ConfError, ModelMissing) as e:
                self.notes.append(
                    f"{stage.name}: its context is unknown, so no loss is counted at answer: {e}"
                )
        # Questions for `rest`: they may search the whole store, and none of their hits contains the gold.
        self._postponed: dict[str, GoldEvidence] = {}

    async def of(
        self, pairs: Sequence[tuple[Question, Question]], golds: Mapping[str, Gold]
    ) -> dict[str, LostAt]:
        """Returns question id -> place where the gold is lost, if the answer is wrong at all. `pairs` has
        each question as asked and as answered. Omits questions without golds, failed and postponed questions,
        and those answered by a ranking of documents."""
        rows = [
            GoldEvidence(asked, answered, GoldText(golds[asked.id].answers), golds[asked.id].labels)
            for asked, answered in pairs
            if asked.id in golds and golds[asked.id].answers and answered.outcome not in ("", FAULT, RANKED)
        ]
        places: dict[str, LostAt] = {}
        for batch in batches(rows, AT_ONCE):
            undecided = await self._evidence([e for e in batch if not e.gold.said(e.answered.answer)])
            for e in {e.asked.id: e for e in (*batch, *undecided)}.values():
                if self._paths.searched(e.asked) is None and self._paths.needs_sources(e):
                    self._postponed[e.asked.id] = replace(e, sources=SourcesHolding())
                else:
                    places[e.asked.id] = self._paths.place(e)
        return places

    def rest(self) -> dict[str, LostAt]:
        """Returns question id -> place, for the questions that `of` postponed."""
        if self._postponed:
            self._search_store()
        return {id: self._paths.place(e) for id, e in self._postponed.items()}

    async def _evidence(self, rows: Sequence[GoldEvidence]) -> list[GoldEvidence]:
        """Fills in the passages, contexts and sources in which each question's gold was seen."""
        chunks = list(dict.fromkeys(h.chunk for e in rows for h in e.answered.hits))
        texts = dict(zip(chunks, await self._index.texts(chunks), strict=True))
        held_by = [[h.chunk for h in e.answered.hits if e.gold.held(texts[h.chunk])] for e in rows]
        evidence = [replace(e, passages=frozenset(c)) for e, c in zip(rows, held_by, strict=True)]
        for stage, context_of in self._contexts:
            has = [bool(e.answered.order) and self._paths.replied(stage, e.answered) for e in evidence]
            replied = [i for i, one in enumerate(has) if one]
            contexts = await context_of([evidence[i].answered for i in replied]) if replied else []
            for i, text in zip(replied, contexts, strict=True):
                shown = {**evidence[i].shown, stage.name: evidence[i].gold.held(text)}
                evidence[i] = replace(evidence[i], shown=shown)
        return [await self._with_sources(e) for e in evidence]

    async def _with_sources(self, e: GoldEvidence) -> GoldEvidence:
        """Fills in the sources that contain the gold, if the place depends on them. Only sources that the
        question may search are searched. A question that may search the whole store is returned unchanged."""
        searched = self._paths.searched(e.asked)
        if searched is None or not self._paths.needs_sources(e):
            return e
        texts = dict(zip(searched, await self._index.source_texts(searched), strict=True))
        containing = {s: text for s, text in texts.items() if text is not None and e.gold.held(text)}
        if containing:
            holding = SourcesHolding(True, frozenset(containing), self._with_whole_gold(containing, e.gold))
            return replace(e, sources=holding)
        rows, id_batches = self._pipeline.store.rows, batches(searched, PAGES_AT_ONCE)
        read = (rows("sources", "id", batch, ["content"])["content"].to_pylist() for batch in id_batches)
        in_content = any(e.gold.in_source(content) for contents in read for content in contents)
        return replace(e, sources=SourcesHolding(in_content))

    def _with_whole_gold(self, texts: Mapping[str, str], gold: GoldText) -> frozenset[str]:
        """Returns the ids of the sources that have a passage with the complete gold."""
        p, columns = self._pipeline, ["source", "parent_start", "parent_end"]
        passages = p.store.rows(p.recipe.passages_table, "source", list(texts), columns)
        spans = set(zip(*map(id_texts, passages.columns), strict=True))
        return frozenset(s for s, start, end in spans if gold.held(texts[s][start:end]))

    def _search_store(self) -> None:
        """Searches the parsed texts for each postponed gold, until a passage contains it. Golds that no text
        contains are then searched for in the content of all sources."""
        p, postponed = self._pipeline, self._postponed
        by_word = _by_first_word(postponed.values())
        for batch in p.store.batches(p.recipe.texts_table, ["source", "text"]):
            for row in batch.to_pylist():
                source, text = row["source"].hex(), row["text"] or ""
                for id in _candidates(text, by_word):
                    e, holding = postponed[id], postponed[id].sources or SourcesHolding()
                    if not holding.passages and e.gold.held(text):
                        whole = self._with_whole_gold({source: text}, e.gold)
                        holding = SourcesHolding(True, holding.texts | {source}, holding.passages | whole)
                        postponed[id] = replace(e, sources=holding)
        if not (by_word := _by_first_word([e for e in postponed.values() if e.sources == SourcesHolding()])):
            return
        for batch in p.store.batches("sources", ["content"], PAGES_AT_ONCE):
            for text in (t for content in batch["content"].to_pylist() for t in read_through(content)):
                for id in _candidates(text, by_word):
                    if postponed[id].sources == SourcesHolding() and postponed[id].gold.held(text):
                        postponed[id] = replace(postponed[id], sources=SourcesHolding(True))


def _by_first_word(postponed: Iterable[GoldEvidence]) -> dict[str, list[str]]:
    """Maps the first word of each truth to the ids of the questions with that truth. The key "" has the
    questions whose gold any text may hold: judgements such as yes or no, and truths without words."""
    ids: dict[str, list[str]] = {}
    for e in postponed:
        for truth in e.gold.truths:
            words = normalized(truth).split()
            ids.setdefault("" if e.gold.judgement or not words else words[0], []).append(e.asked.id)
    return ids


def _candidates(text: str, by_word: Mapping[str, list[str]]) -> Iterator[str]:
    """Yields the ids of questions whose gold `text` may hold: those under "" or under a word of `text`."""
    for word in {*normalized(text).split(), ""} & by_word.keys():
        yield from by_word[word]


def misses(found: Mapping[str, LostAt], right: Mapping[str, bool | None]) -> dict[str, LostAt]:
    """Keeps the places of wrong answers. `right` maps question ids to whether the answer is right."""
    return {id: place for id, place in found.items() if right.get(id) is False}


class RankingLossFinder:
    """Finder for judged documents. A ranking is right if a relevant document is among its first ten."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.notes: list[str] = []
        self._pipeline, self._paths = pipeline, RecipePaths(pipeline.recipe)

    async def of(
        self, pairs: Sequence[tuple[Question, Question]], golds: Mapping[str, Gold]
    ) -> dict[str, LostAt]:
        """Returns question id -> place where the relevant documents were lost if the ranking is wrong.
        `pairs` has each question as asked, and as answered. Omits questions without relevant documents."""
        asked_golds = (golds[asked.id] for asked, _ in pairs if asked.id in golds)
        relevant = {g.question: {d for d, grade in g.grades.items() if grade > 0} for g in asked_golds}
        p, ids = self._pipeline, sorted(set().union(*relevant.values()))
        rows = p.store.rows("documents", "id", ids, ["id", "source"])
        source_of = dict(zip(*map(id_texts, rows.columns), strict=True))
        places = {}
        for asked, answered in pairs:
            if documents := relevant.get(asked.id):
                sources = {source_of[d] for d in documents if d in source_of}
                if (searched := self._paths.searched(asked)) is not None:
                    sources &= set(searched)
                passages = frozenset(h.chunk for h in answered.hits if h.source in sources)
                holding, ids = SourcesHolding(), sorted(sources)
                if not passages:  # find the relevant sources that have a text, and those that have passages
                    texts = p.store.rows(p.recipe.texts_table, "source", ids, ["source", "text"]).to_pylist()
                    columns = ["source", "start", "end"]
                    spans = p.store.rows(p.recipe.passages_table, "source", ids, columns).to_pylist()
                    with_text = frozenset(r["source"].hex() for r in texts if (r["text"] or "").strip())
                    with_passages = frozenset(r["source"].hex() for r in spans if r["end"] > r["start"])
                    holding = SourcesHolding(bool(ids), with_text, with_passages)
                evidence = GoldEvidence(asked, answered, GoldText(()), passages=passages, sources=holding)
                places[asked.id] = self._paths.place_of_documents(evidence)
        return places

    def rest(self) -> dict[str, LostAt]:
        """Returns an empty mapping, since `of` finds every place."""
        return {}


class RoutingCheck:
    """Counter of replies that match gold labels: replies of routers, and of a path such as a graph."""

    def __init__(self, recipe: Recipe) -> None:
        self._confusion: dict[str, dict[str, Counter[str]]] = {}  # reply -> gold's label -> reply's label
        self._path = evidence_path(recipe)

    def add(self, question: Question, gold: Gold) -> None:
        for name, label in gold.labels.items():
            reply_label = question.replies.get(name, SKIPPED_REPLY).label
            if reply_label not in (SKIPPED, FAULT):
                self._confusion.setdefault(name, {}).setdefault(label, Counter())[reply_label] += 1
        if self._path is not None:
            self._path.add(question, gold)

    def found(self) -> Routing:
        return Routing(router_scores(self._confusion), None if self._path is None else self._path.score())
