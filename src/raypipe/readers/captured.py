"""Captured questions to questions with their evidence, golds and sources.

One record, as `raypipe eval --data captured:7d` writes them from what an endpoint captured:

    {"id": "captured-5c0f...", "query": "who wrote it?", "body": "", "asked_at": "",
     "citations": [{"rank": 0, "url": "https://...", "modified": "", "page": "91774d62...", "snippet": null,
                    "name": null}],
     "sources": [{"kind": "page", "content": "<p>..."}],
     "answers": ["ada lovelace"], "labels": {"feedback": "text"}}

`citations` null: the whole store is searched. `sources` are those that the store may lack; all others are
there. `answers` are what users said is right; without any there is no gold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from raypipe.core.records import Citation, Gold, Question, Source, SourceKind
from raypipe.readers.lines import JsonLine
from raypipe.readers.rows import Fields, ReadCounts, Row, Seen, UnusableLine, kind, settled, source_of

NAME = "captured"
SOURCE_KINDS: tuple[SourceKind, ...] = get_args(SourceKind)


def rows(lines: Iterable[JsonLine], counts: ReadCounts, seen: Seen) -> Iterator[Row]:
    seen = replace(seen, captured=True)
    for line in lines:
        for row in settled(line.where, partial(_row, line), counts, seen.repeats):
            if row.question is not None:
                counts.questions_without_pages += row.question.citations == ()
            yield row


def _row(line: JsonLine) -> Row:
    value = line.unwrap()
    fields = Fields(value)
    id = fields.filled("id")
    cited = value.get("citations")
    if cited is not None and not isinstance(cited, list):
        raise UnusableLine("wrong_type", f"citations: expected a list or null, found {kind(cited)}")
    citations = None if cited is None else tuple(_citation(id, c, n) for n, c in enumerate(cited))
    question = Question(id, fields.filled("query"), fields.get("body"), fields.get("asked_at"), citations)
    answers = tuple(a for a in fields.get("answers", list) if isinstance(a, str) and a.strip())
    labels = {n: v for n, v in fields.get("labels", dict).items() if isinstance(v, str)}
    sources = {s.id: s for s in map(_source, fields.get("sources", list))}
    return Row(
        line.where, question, Gold(id, answers, labels) if answers else None, sources=tuple(sources.values())
    )


def _citation(question: str, value: Any, number: int) -> Citation:
    path = f"citations[{number}]."
    if not isinstance(value, dict):
        raise UnusableLine("wrong_type", f"{path[:-1]}: expected an object, found {kind(value)}")
    get = Fields(value, path).get
    texts = (None if value.get(f) is None else get(f) for f in ("page", "snippet", "name"))
    return Citation(question, get("rank", int), get("url"), get("modified"), *texts)


def _source(value: Any) -> Source:
    if not isinstance(value, dict) or value.get("kind") not in SOURCE_KINDS:
        expected = ", ".join(SOURCE_KINDS)
        raise UnusableLine("wrong_type", f"sources: expected objects with a kind of {expected}")
    return source_of(value["kind"], Fields(value, "sources.").filled("content"))
