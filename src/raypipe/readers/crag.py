"""Reader of CRAG's JSON lines and of captured questions: questions with citations, golds and sources.

One record of CRAG (the list of pages has 5 entries in tasks 1 and 2, up to 50 in task 3):

    {"interaction_id": "55b219e5-ba31-4318-a73d-551f0fb9c546", "query_time": "03/05/2024, 23:18:31 PT",
     "domain": "finance", "question_type": "multi-hop", "static_or_dynamic": "real-time", "split": 1,
     "query": "what company in the dow jones is the best performer today?",
     "answer": "salesforce", "alt_ans": [], "popularity": "",
     "search_results": [{"page_name": "Best Dow Jones Stocks To Watch In 2024",
                         "page_url": "https://www.investors.com/research/dow-jones-stocks/",
                         "page_snippet": "The best Dow Jones stocks to buy and watch in 2024 are ...",
                         "page_result": "<!doctype html>\\n<html class=...",
                         "page_last_modified": " Wed, 06 Mar 2024 03:19:02 GMT"}]}

The older schema has `alternative_answers`, a JSON list inside a string ("[]"), instead of `alt_ans`; both
schemas give equal rows. In a file of questions without pages, a record has `row` (its number in the full set)
and no `search_results`. Its question has no citations; without an interaction_id its id is "row-N".

The content of page_result becomes a source unchanged, even if it is the bytes of a PDF.

A captured question, as `raypipe eval --data captured:7d` writes it from the requests to an endpoint:

    {"id": "captured-5c0f...", "query": "who wrote it?", "body": "", "asked_at": "", "where": "",
     "citations": [{"rank": 0, "url": "https://...", "modified": "", "page": "91774d62...", "snippet": null,
                    "name": null}],
     "sources": [{"kind": "page", "content": "<p>..."}],
     "answers": ["ada lovelace"], "labels": {"feedback": "text"}}

If `citations` is null, the whole store is searched; if `where` is not empty, only sources that meet this
condition. `sources` lists cited sources that the store may lack. `answers` are the right answers as users
gave them; if there are none, the question has no gold. HTML is not parsed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from raypipe.core.records import Citation, Fault, Gold, Question, Source, SourceKind
from raypipe.core.textfile import written
from raypipe.readers.conversation import turns_of
from raypipe.readers.file_read import FileRead
from raypipe.readers.lines import JsonLine
from raypipe.readers.rows import STEP, Fields, Row, UnusableLine, kind, source_of

CAPTURED = "captured"
SOURCE_KINDS: tuple[SourceKind, ...] = get_args(SourceKind)
_LABELS = """domain question_type static_or_dynamic popularity split
    kg_answerable premise_false answer_on_pages template kg_program kg_rule"""
LABELS = _LABELS.split()  # the labels in the second line above belong to invented worlds
PAGE_TEXTS = ("page_name", "page_url", "page_snippet", "page_last_modified")  # null is read as ""


def rows(lines: Iterable[JsonLine], read: FileRead) -> Iterator[Row]:
    """Yields a row for each line: its question or its fault. Repeated questions are only counted."""
    counts = read.counts
    for line in lines:
        for row in read.settled(line.where, partial(_row, line)):
            if row.used:
                value = line.unwrap()
                pages = value.get("search_results", [])
                empty = (not p["page_result"].strip() for p in pages if p["page_result"] is not None)
                counts.page_faults += len(row.faults)
                counts.questions_without_pages += not pages
                counts.empty_pages += sum(empty)
                counts.number_golds += sum(not isinstance(answer, str) for _, answer in _golds(value))
                counts.null_fields += sum(p[f] is None for p in pages for f in PAGE_TEXTS)
            yield row


def _row(line: JsonLine) -> Row:
    value = line.unwrap()
    fields = Fields(value)
    bare = "search_results" not in value and type(value.get("row")) is int
    nameless = bare and "interaction_id" not in value
    id = f"row-{value['row']}" if nameless else fields.identifier("interaction_id")
    asked_at = "" if bare and "query_time" not in value else fields.get("query_time")
    citations, sources, faults = cited(id, [] if bare else fields.get("search_results", list))
    question = Question(id=id, text=fields.filled("query"), asked_at=asked_at, citations=citations)
    gold = Gold(id, _answers(value), _labels(value))
    return Row(line.where, question, gold, sources=sources, faults=faults)


def cited(
    question: str, pages: list[Any]
) -> tuple[tuple[Citation, ...], tuple[Source, ...], tuple[Fault, ...]]:
    """Reads a question's search results: citations, distinct sources, and faults. A result with a null page
    gives a fault and is still cited. Raises UnusableLine if a result has another shape."""
    citations, sources, faults = list[Citation](), dict[str, Source](), list[Fault]()

    def source(kind: SourceKind, content: str) -> str | None:
        if not content or content.isspace():
            return None
        made = source_of(kind, content)
        return sources.setdefault(made.id, made).id

    for rank, page in enumerate(pages):
        path = f"search_results[{rank}]"
        if not isinstance(page, dict):
            raise UnusableLine("wrong_type", f"{path}: expected an object, found {kind(page)}")
        get = Fields(page, f"{path}.").get
        name, url, snippet, modified = ("" if page.get(f, "") is None else get(f) for f in PAGE_TEXTS)
        html = page.get("page_result", "")
        if html is None:
            detail = f"{path}.page_result: expected text, found null; the question keeps its other pages"
            faults.append(Fault(STEP, "null_page", detail, transient=False))
        else:
            html = get("page_result")
        made = source("page", html), source("snippet", snippet), source("name", name)
        citations.append(Citation(question, rank, url, modified, *made))
    return tuple(citations), tuple(sources.values()), tuple(faults)


def _answers(value: Mapping[str, Any]) -> tuple[str, ...]:
    for path, answer in _golds(value):
        if type(answer) not in (str, int, float):
            raise UnusableLine("wrong_type", f"{path}: expected text or a number, found {kind(answer)}")
    if not str(value["answer"]).strip():
        raise UnusableLine("missing_field", "answer: expected text, found a blank one")
    return tuple(dict.fromkeys(written(answer) for _, answer in _golds(value)))


def _golds(value: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Lists (name of the field, answer): the answer, then its alternatives from either schema."""
    if "answer" not in value:
        raise UnusableLine("missing_field", "answer: expected text, found no such field")
    name = "alt_ans" if "alt_ans" in value else "alternative_answers"
    others = value.get(name)
    if isinstance(others, str):
        try:
            others = json.loads(others or "[]")
        except ValueError as e:
            raise UnusableLine("wrong_type", f"{name}: expected a list, found text that is no JSON") from e
    if others is not None and not isinstance(others, list):
        raise UnusableLine("wrong_type", f"{name}: expected a list, found {kind(others)}")
    return [("answer", value["answer"]), *((f"{name}[{i}]", o) for i, o in enumerate(others or []))]


def _labels(value: Mapping[str, Any]) -> dict[str, str]:
    """Returns the labels that are not empty; numbers and booleans are written as in JSON."""
    labels: dict[str, str] = {}
    for name in LABELS:
        label = value.get(name)
        if isinstance(label, (list, dict)):
            raise UnusableLine("wrong_type", f"{name}: expected text, found {kind(label)}")
        if label is not None and label != "":
            labels[name] = label if isinstance(label, str) else json.dumps(label)
    return labels


def captured(lines: Iterable[JsonLine], read: FileRead) -> Iterator[Row]:
    """Yields a row for each line of captured questions: its question or its fault; only counts repeats."""
    read = replace(read, seen=replace(read.seen, captured=True))
    for line in lines:
        for row in read.settled(line.where, partial(_captured, line)):
            if row.question is not None:
                read.counts.questions_without_pages += row.question.citations == ()
            yield row


def _captured(line: JsonLine) -> Row:
    value = line.unwrap()
    fields = Fields(value)
    id = fields.filled("id")
    whole = value.get("citations") is None
    citations = None if whole else tuple(_citation(id, c) for c in fields.objects("citations"))
    question = Question(
        id,
        fields.filled("query"),
        fields.get("body"),
        fields.get("asked_at"),
        citations,
        where=fields.get("where") if "where" in value else "",
        turns=turns_of(value.get("turns") or [], "turns"),
    )
    answers = tuple(a for a in fields.get("answers", list) if isinstance(a, str) and a.strip())
    labels = {n: v for n, v in fields.get("labels", dict).items() if isinstance(v, str)}
    sources = dict[str, Source]()
    for source in fields.objects("sources"):
        if (of := source.value.get("kind")) not in SOURCE_KINDS:
            expected = f"expected a kind of {', '.join(SOURCE_KINDS)}"
            raise UnusableLine("wrong_type", f"{source.path}kind: {expected}")
        made = source_of(of, source.filled("content"))
        sources[made.id] = made
    gold = Gold(id, answers, labels) if answers else None
    return Row(line.where, question, gold, sources=tuple(sources.values()))


def _citation(question: str, fields: Fields) -> Citation:
    get = fields.get
    texts = (None if fields.value.get(f) is None else get(f) for f in ("page", "snippet", "name"))
    return Citation(question, get("rank", int), get("url"), get("modified"), *texts)
