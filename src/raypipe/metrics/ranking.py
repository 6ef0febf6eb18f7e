"""Ranking measures as trec_eval computes them, and TREC files. Rankings consist of document ids by query.

Documents are ordered as in trec_eval: by falling score, and if scores are equal, by falling id. Scores are
equal if they are equal in single precision, because trec_eval stores them so. `ranked` gives this order;
`write_run` writes a run in the order in which it is scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytrec_eval

from raypipe.core.errors import DataError
from raypipe.core.textfile import filled, replaced

Run: TypeAlias = Mapping[str, Mapping[str, float]]
"""query id -> document id -> score, bigger is better."""

Qrels: TypeAlias = Mapping[str, Mapping[str, int]]
"""query id -> document id -> relevance; relevant from 1 on."""

MEASURES = ("map", "map_cut_20", "ndcg_cut_10", "recip_rank", "recall_5", "recall_20", "recall_100")
MAP_CUT_20_MIN = "map_cut_20_min"
"""As map_cut_20, but divided by min(relevant, 20), not by all relevant documents, so 1 can be reached."""

_ASKED = {"map", "map_cut.20", "ndcg_cut.10", "recip_rank", "recall.5,20,100", "num_rel"}


@dataclass(frozen=True, slots=True)
class RankingScore:
    """Ranking measures: means over judged queries; a query without a ranking counts 0 (trec_eval -c)."""

    means: Mapping[str, float | None]  # measure -> mean; None: no query has judgements
    per_query: Mapping[str, Mapping[str, float]]  # query -> measure -> value; judged queries, sorted by id
    unranked: tuple[str, ...]  # judged queries without a ranking, sorted
    unjudged: tuple[str, ...]  # ranked queries without judgements: in no mean, sorted


def score(run: Run, qrels: Qrels) -> RankingScore:
    def plain(table: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        return {query: dict(row) for query, row in table.items() if row}

    found = pytrec_eval.RelevanceEvaluator(plain(qrels), _ASKED).evaluate(plain(run))
    names = (*MEASURES, MAP_CUT_20_MIN)
    per_query: dict[str, dict[str, float]] = {}
    for query in sorted(qrels):
        values = dict(found.get(query, {}))
        if relevant := values.get("num_rel"):
            values[MAP_CUT_20_MIN] = values["map_cut_20"] * relevant / min(relevant, 20.0)
        per_query[query] = {n: values.get(n, 0.0) for n in names}
    n = len(per_query)
    means = {m: math.fsum(v[m] for v in per_query.values()) / n if n else None for m in names}
    unranked = tuple(q for q in per_query if not run.get(q))
    return RankingScore(means, per_query, unranked, tuple(sorted(run.keys() - qrels.keys())))


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Sorts document ids, best first, and breaks ties as trec_eval does.

    >>> ranked({"a": 1.0, "b": 1.0 + 1e-9, "c": 2.0})
    ['c', 'b', 'a']
    """
    return sorted(scores, key=lambda d: (np.float32(scores[d]), d.encode()), reverse=True)


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Reads a TREC run, `query Q0 document rank score tag` per line, plain or .gz. Ignores the ranks: scores
    give the order. Raises DataError for a malformed line or a repeated document."""
    run: dict[str, dict[str, float]] = {}
    for line in filled(path):
        query, _, document, _, text, _ = line.fields("query Q0 document rank score tag")
        value = line.number_of(float, text, "a score")
        if not math.isfinite(value):
            raise line.error("a finite score", text)
        if document in run.setdefault(query, {}):
            raise line.error(f"each document once for query {query!r}", document)
        run[query][document] = value
    return run


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Reads TREC judgements, `query 0 document relevance` per line, plain or .gz. Raises DataError for a
    malformed line or a repeated document."""
    qrels: dict[str, dict[str, int]] = {}
    for line in filled(path):
        query, _, document, text = line.fields("query 0 document relevance")
        if document in qrels.setdefault(query, {}):
            raise line.error(f"each document once for query {query!r}", document)
        qrels[query][document] = line.number_of(int, text, "a whole number as relevance")
    return qrels


def write_run(path: Path, run: Run, tag: str) -> None:
    """Writes a TREC run: queries in their order, ranks from 1. Raises DataError for ids with white space."""
    with replaced(path) as out:
        for query, scores in run.items():
            for rank, document in enumerate(ranked(scores), 1):
                score = float(scores[document])
                out.write(f"{trec_word(query)} Q0 {trec_word(document)} {rank} {score!r} {trec_word(tag)}\n")


def trec_word(text: str) -> str:
    """Returns `text` if it can be an id in a TREC run. Raises DataError if it is empty or has white space."""
    if text.split() != [text]:
        raise DataError(f"expected an id without white space (a TREC run has no other kind), found {text!r}")
    return text
