"""Rankings of passages as rankings of documents: a document's score is its best passage's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raypipe.core.records import Question
from raypipe.store import Store

FINAL = "final"  # the order that the recipe ends with


def documents_of(store: Store, sources: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Source -> ids of the stored documents with its text, for those of these sources (None: of all) that are
    documents."""
    listed: dict[str, list[str]] = {}
    if sources is None:
        rows = store.scan("documents", ["id", "source"])
    else:
        rows = store.rows("documents", "source", sources, ["id", "source"])
    for row in rows.to_pylist():
        listed.setdefault(row["source"], []).append(row["id"])
    return listed


def ranked_documents(
    question: Question, by: str, listed: Mapping[str, Sequence[str]], top: int
) -> dict[str, float]:
    """Document -> score, the best `top`; a document's score is its best passage's.

    `final` is the order that the recipe ended with, as falling numbers; any other name is that score.
    """
    best: dict[str, float] = {}
    source = {h.chunk: h.source for h in question.hits}
    scores = [(h.source, h.scores[by]) for h in question.hits if by in h.scores]
    if by == FINAL:
        scores = [(source[c], float(len(question.order) - i)) for i, c in enumerate(question.order)]
    for source_id, score in scores:
        for id in listed.get(source_id, ()):
            best[id] = max(score, best.get(id, score))
    return dict(sorted(best.items(), key=lambda item: (-item[1], item[0]))[:top])
