"""`ranking`: queries with judged documents. The measures of trec_eval, over the ranked documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from raypipe.metrics.crag import Prediction
from raypipe.metrics.kinds.contract import GoldForm, Measure

RIGHT_WITHIN = 10  # ranks: the page of results that nDCG@10 looks at


@dataclass(frozen=True, slots=True)
class Ranking:
    """Queries whose documents have grades: relevant from 1 on, and more so the higher. No answer counts."""

    golds: ClassVar[GoldForm] = "grades"
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("ndcg_cut_10", "gain of the first 10, discounted by rank (nDCG@10)"),
        Measure("map", "mean precision at each relevant document (MAP)"),
        Measure("map_cut_20", "the same, of the first 20 (MAP@20)"),
        Measure("map_cut_20_min", "the same over the relevant ones that fit into 20"),
        Measure("recip_rank", "1 / rank of the first relevant document (MRR)"),
        Measure("recall_5", "share of the relevant ones among the first 5"),
        Measure("recall_20", "among the first 20"),
        Measure("recall_100", "among the first 100"),
    )

    def right(self, values: Mapping[str, float]) -> bool | None:
        """Whether a relevant document is among the first RIGHT_WITHIN; None: it is not scored."""
        return values["recip_rank"] >= 1 / RIGHT_WITHIN if "recip_rank" in values else None

    def values(self, row: Prediction) -> Mapping[str, float]:
        from raypipe.metrics import ranking  # trec_eval's library, which no other kind needs

        if row.ranked is None:
            return {}
        run = {d: float(len(row.ranked) - i) for i, d in enumerate(row.ranked)}
        return ranking.score({row.question: run}, {row.question: row.grades}).per_query[row.question]
