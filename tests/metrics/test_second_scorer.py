"""Our ranking measures, next to a second implementation that shares no line and no library with them."""

import gzip
import json
import os
import random
import re
from pathlib import Path

import pytest
from second_scorer import means

from raypipe.metrics.ranking import read_qrels, score

SCIFACT = Path(os.environ.get("RAYPIPE_DATA", ".")) / "scifact"


def agreed(run, qrels):
    ours, theirs = score(run, qrels).means, means(run, qrels)
    assert {m: ours[m] for m in theirs} == pytest.approx(theirs, abs=1e-9)
    return theirs


def test_two_scorers_agree_on_random_rankings_with_ties_and_grades():
    rng = random.Random(3)
    for _ in range(20):
        documents = [f"d{i}" for i in range(60)]
        qrels = {f"q{i}": {d: rng.randrange(0, 4) for d in rng.sample(documents, 9)} for i in range(12)}
        run = {}
        for q in list(qrels)[1:]:
            found = rng.sample(documents, rng.randrange(1, 50))
            run[q] = {d: rng.randrange(8) + rng.choice([0, 1e-9]) for d in found}
        agreed(run, qrels)


@pytest.mark.slow
@pytest.mark.skipif(not SCIFACT.is_dir(), reason="RAYPIPE_DATA names no folder with scifact/")
def test_two_scorers_agree_on_scifact_ranked_by_shared_words():
    def read(name):
        with gzip.open(SCIFACT / name, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def words(text):
        return set(re.findall(r"[a-z0-9]{4,}", text.lower()))

    held = {d["_id"]: words(d["title"] + " " + d["text"]) for d in read("corpus.jsonl.gz")}
    run = {}
    for query in read("queries.jsonl.gz"):
        asked = words(query["text"])
        shared = {d: float(len(asked & some)) for d, some in held.items() if asked & some}
        run[query["_id"]] = dict(sorted(shared.items(), key=lambda x: -x[1])[:200])
    found = agreed(run, read_qrels(SCIFACT / "qrels.trec"))
    assert found["ndcg_cut_10"] > 0.3
