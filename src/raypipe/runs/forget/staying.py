"""What stays in a store although it says what is forgotten, too: other sources, and what rests on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.plain import to_json
from raypipe.core.records import ABSTAINED, ANSWERED, FAULT, INVALID, SKIPPED, TRACE, Outcome, SourceKind
from raypipe.runs.forget.memo_rows import Followed
from raypipe.runs.forget.mentions import RUN, OwnWords
from raypipe.runs.forget.records import FoundRows, Holding, Shared
from raypipe.runs.forget.target import Target
from raypipe.runs.roots import Roots
from raypipe.store import Store
from raypipe.store.keep import tables
from raypipe.store.lookups import rows

AT_ONCE = 256  # rows with texts in memory
FIXED = (ANSWERED, ABSTAINED, INVALID, SKIPPED, FAULT, TRACE, *get_args(Outcome), *get_args(SourceKind))
"""Words that stand in every record, with the roles of a chat's turns."""

LISTED = 10  # sources, or questions, that are named for people


def staying(store: Store, target: Target, kept: Roots, own: OwnWords, passages: set[str]) -> Shared:
    """Takes out of the words of a target what others say: sources, as they came and as they were parsed,
    questions, golds and recipes."""
    shared, gone = Shared(), pa.array(target.sources, pa.string())
    own.subtract(" ".join((*FIXED, "system user assistant")))
    named = [("sources", "id", "content"), *((t, "source", "text") for t in parsed_tables(store))]
    for table, column, text in named:
        for batch in store.batches(table, [column, text], AT_ONCE):
            left = batch.filter(pc.invert(pc.is_in(batch[column], value_set=gone)))
            for id, said in zip(left[column].to_pylist(), left[text].to_pylist(), strict=True):
                if runs := own.subtract(said or ""):
                    shared.sources[id] = max(runs, shared.sources.get(id, 0))
                shared.passages |= {p for p in passages - shared.passages if p in (said or "")}
    for batch in store.batches("questions", ["id", "text", "body"], AT_ONCE):
        for row in batch.to_pylist():
            if row["id"] not in target.questions:
                own.subtract(f"{row['text']} {row['body']}")
    for batch in store.batches("golds", ["question", "answers"], AT_ONCE):
        for row in batch.to_pylist():
            if row["question"] not in target.questions:
                own.subtract(" ".join(row["answers"]))
    for recipe in (*(r.recipe for r in kept.runs), *(r.recipe for r in kept.releases)):
        own.subtract(json.dumps(to_json(recipe), ensure_ascii=False))  # prompts are in it
    return shared


def parsed_tables(store: Store) -> list[str]:
    return [t for t in tables(store) if t.startswith("texts-")]


def kept_holdings(
    store: Store, target: Target, texts: Sequence[str], shared: Shared, followed: Followed, found: FoundRows
) -> list[Holding]:
    """What stays although it says the same, and what is not known, for people."""
    out = [
        Holding("kept", f"source {s}", 0, "a name or snippet of other addresses, too") for s in target.shared
    ]
    alike = sorted(shared.sources.items(), key=lambda s: (-s[1], s[0]))
    for source, runs in alike[:LISTED]:
        does = f"says {runs} of its runs of {RUN} words, too, and stays; forget it by this id"
        out.append(Holding("kept", f"source {source}", 0, does))
    if len(alike) > LISTED:
        out.append(Holding("kept", "sources", len(alike) - LISTED, "more say some of it, too, and stay"))
    if quoting := _quoting(store, texts, found):
        does = "stay: they quote what it says as well, byte for byte, from a source that stays"
        out.append(Holding("kept", "answers", quoting, does))
    if doubtful := sorted(set(found.doubtful.values())):
        named = ", ".join(doubtful[:LISTED]) + (", ..." if len(doubtful) > LISTED else "")
        does = f"stay: they say what no other source says, and rest on none of it; of questions {named}"
        out.append(Holding("kept", "answers", len(found.doubtful), does))
    for why, keys in followed.unfollowed.items():
        does = f"{len(keys)} answers could not be followed ({why}): of their replies those go that quote it"
        out.append(Holding("memo", "replies", 0, does))
    return out


def _quoting(store: Store, texts: Sequence[str], found: FoundRows) -> int:
    """Answers that stay and quote, from a source that stays, a text that stands in one that goes, too."""
    quoting = set[str]()
    for table in parsed_tables(store) if found.quoted else ():
        for row in rows(store.dataset(table), "source", sorted(found.quoted)).to_pylist():
            for (start, end), keys in found.quoted[row["source"]].items():
                said = (row["text"] or "")[start:end]
                if said.strip() and any(said in text for text in texts):
                    quoting |= keys - found.answers.keys()
    return len(quoting)
