"""Looks for the judged documents of ranked questions in what the run was made of: where was each lost?

A question is right if a relevant document is among the first ten (`metrics.kinds.ranking`). Where none is,
its relevant documents are looked for in ranking, hits, passages and store. Reads tables alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from raypipe.core.records import Gold, Question
from raypipe.evaluation.loss_paths import GoldEvidence, RecipePaths, SourcesHolding
from raypipe.metrics.losses import GoldText, LostAt
from raypipe.pipeline.driver import Pipeline

NO_TEXT = GoldText(())


class RankingLossFinder:
    """Finds the places of the questions of a run, a batch at a time. `notes` stays empty."""

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
        source_of = self._sources({d for some in relevant.values() for d in some})
        found = {}
        for asked, answered in pairs:
            if documents := relevant.get(asked.id):
                sources = {source_of[d] for d in documents if d in source_of}
                found[asked.id] = self._paths.place_of_documents(self._evidence(asked, answered, sources))
        return found

    def rest(self) -> dict[str, LostAt]:
        """Nothing is left to look for."""
        return {}

    def _sources(self, documents: Collection[str]) -> dict[str, str]:
        """Document -> its source, of those that are stored."""
        rows = self._pipeline.store.rows("documents", "id", sorted(documents), ["id", "source"])
        return dict(zip(rows["id"].to_pylist(), rows["source"].to_pylist(), strict=True))

    def _evidence(self, asked: Question, answered: Question, sources: set[str]) -> GoldEvidence:
        searched = self._paths.searched(asked)
        if searched is not None:
            sources = sources & set(searched)
        passages = frozenset(h.chunk for h in answered.hits if h.source in sources)
        held = SourcesHolding() if passages else self._held(sources)
        return GoldEvidence(asked, answered, NO_TEXT, passages=passages, sources=held)

    def _held(self, sources: Collection[str]) -> SourcesHolding:
        """Which of the sources have a text, and passages."""
        store, ids = self._pipeline.store, sorted(sources)
        texts = store.rows(self._pipeline.texts_table, "source", ids, ["source", "text"]).to_pylist()
        spans = store.rows(self._pipeline.passages_table, "source", ids, ["source", "start", "end"])
        return SourcesHolding(
            bool(sources),
            frozenset(r["source"] for r in texts if (r["text"] or "").strip()),
            frozenset(r["source"] for r in spans.to_pylist() if r["end"] > r["start"]),
        )
