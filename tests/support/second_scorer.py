"""Ranking measures by their textbook formulas, in plain Python, apart from `raypipe.metrics`.

Ties go by document id, the larger first, as trec_eval breaks them; its scores are single precision numbers.
"""

import math
import struct


def single(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def order(scores):
    """Documents, best first."""
    by_id = sorted(scores, key=lambda d: d.encode(), reverse=True)
    return sorted(by_id, key=lambda d: -single(scores[d]))


def average_precision(ranked, relevant, depth=None):
    hits, total = 0, 0.0
    for place, document in enumerate(ranked[:depth], 1):
        if document in relevant:
            hits += 1
            total += hits / place
    return total / len(relevant) if relevant else 0.0


def ndcg(ranked, grades, depth):
    def gained(values):
        return sum(g / math.log2(place + 1) for place, g in enumerate(values, 1))

    found = gained([max(grades.get(d, 0), 0) for d in ranked[:depth]])
    best = gained(sorted((g for g in grades.values() if g > 0), reverse=True)[:depth])
    return found / best if best else 0.0


def measures(scores, grades):
    """The measures of one query."""
    ranked, relevant = order(scores), {d for d, g in grades.items() if g > 0}

    def recall(depth):
        return len(relevant & set(ranked[:depth])) / len(relevant) if relevant else 0.0

    first = next((place for place, d in enumerate(ranked, 1) if d in relevant), None)
    return {
        "map": average_precision(ranked, relevant),
        "map_cut_20": average_precision(ranked, relevant, 20),
        "ndcg_cut_10": ndcg(ranked, grades, 10),
        "recip_rank": 1 / first if first else 0.0,
        "recall_5": recall(5),
        "recall_20": recall(20),
        "recall_100": recall(100),
    }


def means(run, qrels):
    """Means over all judged queries; one that was not ranked counts 0."""
    rows = [measures(run.get(query, {}), grades) for query, grades in qrels.items()]
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}
