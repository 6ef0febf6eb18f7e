"""The questions of `bench/figures/extract.py`: texts, golds, and the five passages that BM25 finds for each.

Passages are those of `local` (windows of 700 characters); they are found by stemmed BM25 alone, among a
question's own pages, or among all passages of a set that has none of its own.
"""

from __future__ import annotations

import gzip
import html
import json
import re
import string
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from raypipe import readers
from raypipe.api.starting_points import DEMO
from raypipe.contrib.world.write import write as write_synth
from raypipe.core.records import Block, Source, Span, chunk_id, digest, source_id
from raypipe.text import bm25
from raypipe.text.blocks import plain_blocks
from raypipe.text.evidence import ANALYZER
from raypipe.text.page_parser import fold, storable, to_text
from raypipe.text.typed_answers import AskedQuestion, dates, day_of, read
from raypipe.text.words import analyse, character_windows

NQ, SQUAD = "openqa/nq_gold_passage_odd.jsonl.gz", "squad/xquad.en.json.gz"
CRAG = "crag/dev_data.jsonl.bz2"
WINDOW = (700, 100)  # characters of a chunk and of its overlap, as in `local`
PASSAGES = 5  # found per question, as Extract.passages
MOST_WORDS = 45  # of a reply that a strict rule accepts
SYNTH = {"pages": 20, "page_chars": 2000}  # of the worlds that are fitted on and tested on
FALSE = "invalid question"
FIT_SEED, FIT_QUESTIONS, SEED, QUESTIONS = 3, 60, 7, 200  # of the invented worlds
MOST = 120  # questions of each half of NQ and of SQuAD, spread over it


@dataclass(frozen=True, slots=True)
class Case:
    """One question with its golds and the passages that were found."""

    id: str
    text: str
    asked_at: str
    golds: tuple[str, ...]  # (): no text answers it
    order: tuple[str, ...]  # chunk ids
    pool: Pool  # that they were found in


@dataclass(frozen=True, slots=True)
class Page:
    """A text as `parse` gives it."""

    text: str
    blocks: tuple[Block, ...]
    hidden: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Questions with the texts that they are answered from."""

    name: str
    cases: tuple[Case, ...]
    pages: dict[str, Page]  # source id -> text

    def first(self, most: int) -> QuestionSet:
        """At most `most` of its questions, spread evenly."""
        places = range(len(self.cases)) if len(self.cases) <= most else range(most)
        every = len(self.cases) / max(len(places), 1)
        return replace(self, cases=tuple(self.cases[int(i * every)] for i in places))

    def unanswered(self) -> QuestionSet:
        """The same questions over the same texts, but for those that hold a gold: what is said is wrong.

        Without comparisons and questions for yes or no, which other texts may decide, and without false
        premises, which no text answers anyway."""
        said, cases = {s: plain(p.text) for s, p in self.pages.items()}, list[Case]()
        for case in self.cases:
            asked, golds = asked_of(case), [g for g in map(plain, case.golds) if g.strip()]
            if asked.direction or asked.yes_no or plain(FALSE) in golds:
                continue
            holding = {s for s in case.pool.sources if any(g in said[s] for g in golds)}
            cases.append(replace(case, golds=(), order=case.pool.best(case.text, without=holding)))
        return replace(self, name=f"{self.name} unanswered", cases=tuple(cases))


class Passages:
    """Passages with their words, counted once."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[list[str], list[np.ndarray]]] = {}

    def of(self, source: str, text: str) -> tuple[list[str], list[np.ndarray]]:
        """Chunk ids and words of a text."""
        if source not in self._of:
            spans = character_windows(text, *WINDOW)
            words = [analyse(text[a:b], ANALYZER)[0] for a, b in spans]
            self._of[source] = [chunk_id(source, s) for s in spans], words
        return self._of[source]


class Pool:
    """Passages that are searched together."""

    def __init__(self, found: Iterable[tuple[list[str], list[np.ndarray]]]) -> None:
        parts = list(found)
        self._chunks = [c for chunks, _ in parts for c in chunks]
        self.sources = frozenset(map(_source, self._chunks))
        words = [w for _, some in parts for w in some]
        flat = np.concatenate([np.zeros(0, np.uint64), *words])
        self._corpus = bm25.Bm25Corpus(np.cumsum([0, *map(len, words)]).astype(np.int64), flat)

    def best(self, question: str, without: Collection[str] = ()) -> tuple[str, ...]:
        """The best passages of all sources, or of all `without` some."""
        asked, _ = analyse(question, ANALYZER)
        at, scores = bm25.scores(self._corpus, asked, "lucene", *bm25.DEFAULTS["lucene"])
        ranked = sorted(zip(scores.tolist(), at.tolist(), strict=True), key=lambda row: (-row[0], row[1]))
        chunks = (self._chunks[i] for _, i in ranked)
        return tuple(islice((c for c in chunks if _source(c) not in without), PASSAGES))


def _source(chunk: str) -> str:
    return chunk.rpartition(":")[0]


def nq(data: Path) -> QuestionSet:
    """Natural Questions; all gold passages are searched."""
    with gzip.open(data / NQ, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    asked = [
        (r["question"], tuple(r["answers"]), f"{r['ctxs'][0]['title']}\n{r['ctxs'][0]['text']}") for r in rows
    ]
    return _shared("NQ", asked)


def squad(data: Path) -> tuple[QuestionSet, list[int]]:
    """SQuAD's questions of XQuAD; all paragraphs are searched. With the number of each one's article."""
    with gzip.open(data / SQUAD, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    asked, numbers = [], []
    for number, article in enumerate(articles):
        title = article["title"].replace("_", " ")
        for p in article["paragraphs"]:
            for q in p["qas"]:
                asked.append(
                    (q["question"], tuple(a["text"] for a in q["answers"]), f"{title}\n{p['context']}")
                )
                numbers.append(number)
    return _shared("SQuAD", asked), numbers


def _shared(name: str, asked: Sequence[tuple[str, tuple[str, ...], str]]) -> QuestionSet:
    passages = Passages()
    pages = {source_id("document", text): plain_page(text, titled=True) for _, _, text in asked}
    pool = Pool(passages.of(s, p.text) for s, p in pages.items())
    cases = (Case(f"{name}-{i}", q, "", golds, pool.best(q), pool) for i, (q, golds, _) in enumerate(asked))
    return QuestionSet(name, tuple(cases), pages)


def plain_page(content: str, titled: bool = False) -> Page:
    return Page(fold(content), plain_blocks(storable(content), titled))


def html_page(title: str, rows: Iterable[tuple[str, str]], prose: Iterable[str], head: str = "td") -> str:
    """A page of a title, a table of labels and values, and paragraphs. `head`: tag of a label; dt for a list
    of terms."""
    cells = [(html.escape(a), html.escape(b)) for a, b in rows]
    if head == "dt":
        table = f"<dl>{''.join(f'<dt>{a}</dt><dd>{b}</dd>' for a, b in cells)}</dl>"
    else:
        found = (f"<tr><{head}>{a}</{head}><td>{b}</td></tr>" for a, b in cells)
        table = f"<table>{''.join(found)}</table>"
    below = "".join(f"<p>{html.escape(x)}</p>" for x in prose)
    return f"<html><head><title>{title}</title></head><body><h1>{title}</h1>{table}{below}</body></html>"


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows))


def synth(name: str, questions: int, pages: int, seed: int, page_chars: int) -> QuestionSet:
    """An invented world."""
    with tempfile.TemporaryDirectory() as folder:
        write_synth(Path(folder), questions, pages, seed, page_chars)
        return crag(name, [Path(folder)], "synth")


def demo() -> QuestionSet:
    return synth("demo", DEMO["questions"], DEMO["pages"], DEMO["seed"], DEMO["page_chars"])


def crag(name: str, paths: Sequence[Path], form: str = "crag") -> QuestionSet:
    """Questions with pages and snippets of their own."""
    pages: dict[str, Page] = {}
    passages, cases = Passages(), []
    for row in readers.open(paths, form, readers.ReadCounts()):
        if row.question is None or row.gold is None:
            continue
        cited = [s for s in row.sources if s.kind in ("page", "snippet")]
        for source in cited:
            if source.id not in pages:
                pages[source.id] = _page(source)
        pool = Pool(passages.of(s.id, pages[s.id].text) for s in cited)
        q = row.question
        cases.append(Case(q.id, q.text, q.asked_at, row.gold.answers, pool.best(q.text), pool))
    return QuestionSet(name, tuple(cases), pages)


def _page(source: Source) -> Page:
    if source.kind != "page":
        return plain_page(source.content)
    parsed = to_text(source.content)
    return Page(parsed.text, parsed.blocks, parsed.hidden)


def fit_sets(data: Path) -> list[QuestionSet]:
    """The halves of Natural Questions and of SQuAD that are fitted on, and an invented world."""
    made = synth("synth", FIT_QUESTIONS, SYNTH["pages"], FIT_SEED, SYNTH["page_chars"])
    return [made, _squad(data)[0], _nq(data)[0]]


def test_sets(data: Path, names: Collection[str]) -> list[QuestionSet]:
    """The five sets that are reported, of these `names`."""
    makers: dict[str, Callable[[], QuestionSet]] = {
        "synth": lambda: synth("synth", QUESTIONS, SYNTH["pages"], SEED, SYNTH["page_chars"]),
        "demo": demo,
        "NQ": lambda: _nq(data)[1],
        "SQuAD": lambda: _squad(data)[1],
        "CRAG": lambda: crag("CRAG", [data / CRAG]),
    }
    return [make() for name, make in makers.items() if name in names]


def _nq(data: Path) -> list[QuestionSet]:
    whole = nq(data)
    return [h.first(MOST) for h in halves(whole, [i % 2 == 1 for i in range(len(whole.cases))])]


def _squad(data: Path) -> list[QuestionSet]:
    whole, articles = squad(data)
    return [h.first(MOST) for h in halves(whole, [a % 2 == 1 for a in articles])]


def digests(data: Path) -> str:
    return ", ".join(f"{Path(n).name} {digest((data / n).read_bytes())}" for n in (NQ, SQUAD))


def plain(text: str) -> str:
    """Lower case, one spelling for dates and thousands, without punctuation and articles, between spaces."""
    for start, end in reversed(dates(text)):
        if re.search(r"\D", text[start:end]) and (number := day_of(text[start:end])) is not None:
            text = f"{text[:start]} day{number:.0f} {text[end:]}"
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text).lower()
    text = re.sub(r"(?<=\d)\.(?=\d)", "point", text)
    text = "".join(" " if c in string.punctuation else c for c in text)
    words = re.sub(r"\b(?:a|an|the)\b", " ", text).split()
    return f" {' '.join(words)} "


def holds(text: str, golds: Sequence[str]) -> bool:
    """True if a text has a gold in it, as whole words."""
    said = plain(text)
    return any(plain(g).strip() and plain(g) in said for g in golds)


def strictly(asked: AskedQuestion, text: str, golds: Sequence[str]) -> bool:
    """True if a reply holds a gold in at most `MOST_WORDS` words, and where the question offers a choice is
    one: both sides of a comparison named is not an answer."""
    if len(text.split()) > MOST_WORDS or not holds(text, golds):
        return False
    if asked.yes_no:
        return any(plain(text).startswith(plain(g)) for g in golds)
    return asked.direction is None or any(plain(text) == plain(g) for g in golds)


def asked_of(case: Case) -> AskedQuestion:
    return read(case.text)


def halves(whole: QuestionSet, second: Sequence[bool]) -> Iterator[QuestionSet]:
    """The cases of a set where `second` is False, and the others."""
    for wanted in (False, True):
        cases = tuple(c for c, s in zip(whole.cases, second, strict=True) if s is wanted)
        yield QuestionSet(whole.name, cases, whole.pages)
