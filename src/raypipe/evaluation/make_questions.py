"""Test questions that a model writes from passages of a store's documents, and checks that reject bad ones.

A passage is a run of sentences, up to PASSAGE_CHARS, of a source's text as `parse` gives it; its span refers
to that text. The seed and the documents alone decide which passages are drawn. Rules and further model calls
check each question. The memo (the table of cached model calls) keeps the calls. So a stopped run resumes
where it was, and a run for more questions calls the model only for the additional ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle

import numpy as np

from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.records import Fault, Span, digest
from raypipe.metrics import overlap
from raypipe.store import Store
from raypipe.text.bm25 import DEFAULTS, Bm25Corpus, scores
from raypipe.text.made_questions import PASSAGES, MadeKind, MadeText, Rejected, doubles, read, words
from raypipe.text.page_parser import ParsedPage, ParseJob, SandboxedParser, fold, storable
from raypipe.text.replies import abstains
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import Prompt
from raypipe.text.words import analyse, sentences

PASSAGE_CHARS, LEAST_CHARS = 900, 200
MOST_DOCUMENTS = 2000  # read for a draw: some 40 MB of text
MOST_PASSAGES = 6000  # passages of a draw, among which similar ones are searched
MOST_OF_ONE = 50  # passages of one document
LETTERS = 0.6  # least share of letters in a passage's characters: excludes tables and menus
KINDS = ("page", "document")  # kinds of sources to draw from


@dataclass(frozen=True, slots=True)
class DrawnPassage:
    """A passage drawn from a document."""

    source: str  # source id
    span: Span  # place in the source's parsed text
    text: str
    document: str  # id or url of the document; may be ""
    title: str  # may be ""


@dataclass(frozen=True, slots=True)
class Draw:
    """Passages in drawn order: first one passage of each document, then a second one of each, and so on."""

    passages: tuple[DrawnPassage, ...]
    documents: int  # documents with a passage
    unreadable: int  # documents that cannot be parsed, or have no passage
    corpus: Bm25Corpus = field(repr=False)  # words of the passages

    def like(self, text: str, without: str | None, top: int) -> list[DrawnPassage]:
        """Returns the `top` passages most like a text (BM25), best first, but none of source `without`."""
        query, _ = analyse(text, "stems")
        k1, b = DEFAULTS["lucene"]
        found, values = scores(self.corpus, np.unique(query), "lucene", k1, b)
        ranked = sorted(zip(found.tolist(), values.tolist(), strict=True), key=lambda f: (-f[1], f[0]))
        others = (self.passages[i] for i, _ in ranked if self.passages[i].source != without)
        return [p for p, _ in zip(others, range(top), strict=False)]


def draw(store: Store, seed: int) -> Draw:
    """Draws passages from at most MOST_DOCUMENTS documents of a store; the seed decides choice and order.
    Keeps at most MOST_OF_ONE passages of a document and MOST_PASSAGES in all."""
    kinds = arrow.with_id_texts(store.scan("sources", ["id", "kind"]).to_pylist())
    names, rounds, unreadable = _names(store), dict[str, list[DrawnPassage]](), 0
    found = [r["id"] for r in kinds if r["kind"] in KINDS and r["id"] in names]
    ids = sorted(found, key=lambda id: digest(str(seed), id))[:MOST_DOCUMENTS]
    for source, page in _texts(store, ids):
        cut = [] if page is None else _passages(source, page, names[source])
        unreadable += not cut
        rounds[source] = sorted(cut, key=lambda p: digest(str(seed), p.source, str(p.span)))[:MOST_OF_ONE]
    deepest = max(map(len, rounds.values()), default=0)
    order = [cut[n] for n in range(deepest) for cut in rounds.values() if n < len(cut)]
    kept = tuple(order[:MOST_PASSAGES])
    words = [analyse(p.text, "stems")[0] for p in kept]
    corpus = Bm25Corpus(np.cumsum([0, *map(len, words)]), np.concatenate([np.empty(0, np.uint64), *words]))
    return Draw(kept, len(ids) - unreadable, unreadable, corpus)


def _texts(store: Store, ids: Sequence[str], at_once: int = 50) -> Iterator[tuple[str, ParsedPage | None]]:
    """Yields each source id with its parsed text, or with None if it cannot be parsed."""
    with SandboxedParser() as parser:
        for start in range(0, len(ids), at_once):
            some = ids[start : start + at_once]
            found = {s.id: s for s in arrow.source.records(store.rows("sources", "id", some))}
            for id in some:
                if found[id].kind != "page":
                    yield id, ParsedPage(fold(found[id].content), (), "plain")
                    continue
                [page] = parser.run([ParseJob(storable(found[id].content).encode())])
                yield id, None if isinstance(page, Fault) else page


def _passages(source: str, page: ParsedPage, name: tuple[str, str]) -> list[DrawnPassage]:
    """Cuts a text into consecutive passages. Drops a passage that is too short or too long, is a single
    sentence, is not prose, or contains hidden text."""
    text, out, spans = page.text, list[DrawnPassage](), sentences(page.text)
    while spans:
        n = 1
        while n < len(spans) and spans[n][1] - spans[0][0] <= PASSAGE_CHARS:
            n += 1
        span, spans = (spans[0][0], spans[n - 1][1]), spans[n:]
        said = text[span[0] : span[1]]
        prose = sum(c.isalpha() for c in said) >= LETTERS * len(said)
        shown = not any(a < span[1] and b > span[0] for a, b in page.hidden)
        if LEAST_CHARS <= len(said) <= 2 * PASSAGE_CHARS and prose and shown and n > 1:
            out.append(DrawnPassage(source, span, said, *name))
    return out


def _names(store: Store) -> Mapping[str, tuple[str, str]]:
    """Maps source ids to (name, title). A document has its id and title; a cited page has its URL and ""."""
    found: dict[str, tuple[str, str]] = {}
    for row in arrow.with_id_texts(store.scan("documents").to_pylist()):
        found.setdefault(row["source"], (row["id"], row["title"]))
    for batch in store.batches("questions", ["citations"]):
        for c in chain.from_iterable(filter(None, arrow.with_id_texts(batch["citations"].to_pylist()))):
            if c["page"] is not None:
                found.setdefault(c["page"], (c["url"], ""))
    return found


PROMPTS = ("fact", "two", "list", "comparison", "unanswerable", "answer", "alone")
"""Prompts under prompts/questions: one to write each kind, and two for checks."""
MIX: tuple[MadeKind, ...] = (
    "fact",
    "two",
    "fact",
    "list",
    "fact",
    "unanswerable",
    "fact",
    "comparison",
    "two",
    "fact",
)
"""Kinds of ten consecutive candidates; the cycle then repeats."""
CANDIDATES = 2  # most candidates written per wanted question; the surplus is for rejections
CALLS: Mapping[MadeKind, int] = {"fact": 3, "two": 3, "list": 3, "comparison": 3, "unanswerable": 2}
"""Most calls per candidate: write it, answer it from its passages, answer it without them."""
AT_ONCE = 16  # candidates in a batch: a kill loses at most these
NEAR = 5  # passages searched for an answer to an unanswerable question
AGREES_F1 = 0.6  # least token F1 at which an answer agrees with a gold
WRITE, CHECK = Sampling(max_tokens=400), Sampling(max_tokens=100)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question that is planned but not written yet."""

    kind: MadeKind
    passages: tuple[DrawnPassage, ...]


@dataclass(frozen=True, slots=True)
class MadeQuestion:
    """A written question that passed all checks."""

    id: str
    kind: MadeKind
    text: MadeText
    passages: tuple[DrawnPassage, ...]


@dataclass(slots=True)
class MadeSet:
    """Questions made so far, and counts of rejected candidates."""

    kept: list[MadeQuestion] = field(default_factory=list)
    written: int = 0  # candidates written so far
    rejected: Counter[str] = field(default_factory=Counter)  # reason (made_questions.REASONS) -> candidates


def candidates(draw: Draw, wanted: int) -> list[Candidate]:
    """Plans at most CANDIDATES questions per wanted question. If a kind needs two passages, the second is the
    most similar passage of another document; if there is none, the kind becomes `fact`."""
    found: list[Candidate] = []
    kinds = cycle(MIX)
    for passage in draw.passages:
        if len(found) >= CANDIDATES * wanted:
            break
        kind = next(kinds)
        other = draw.like(passage.text, passage.source, 1) if PASSAGES[kind] == 2 else []
        if PASSAGES[kind] == 2 and not other:
            kind = "fact"
        found.append(Candidate(kind, (passage, *other)))
    return found


def written_chats(planned: Sequence[Candidate], prompts: Mapping[str, Prompt]) -> list[Chat]:
    return [prompts[c.kind].renderer()({"passages": shown(c.passages)}) for c in planned]


async def make(
    planned: Sequence[Candidate],
    draw: Draw,
    wanted: int,
    generate: Generator,
    prompts: Mapping[str, Prompt],
    advance: Callable[[MadeSet], None] = lambda made: None,
) -> MadeSet:
    """Writes and checks planned questions in order until `wanted` are kept. Calls `advance` with the result
    so far after each batch."""
    made, seen = MadeSet(), list[frozenset[str]]()
    for some in batches(planned, AT_ONCE):
        if len(made.kept) >= wanted:
            break
        alike = []
        replies = await generate(written_chats(some, prompts), WRITE)
        for candidate, reply in zip(some, replies, strict=True):
            made.written += 1
            try:
                if not isinstance(reply, Generated):
                    raise Rejected("no_reply")
                text = read(reply.text, candidate.kind, [p.text for p in candidate.passages])
                if doubles(text.question, seen):
                    raise Rejected("double")
            except Rejected as e:
                made.rejected[e.reason] += 1
                continue
            seen.append(words(text.question))
            alike.append((candidate, text))
        for c, text in await _checked(alike, draw, generate, prompts, made):
            if len(made.kept) < wanted:
                named = digest(c.kind, text.question, *(p.source for p in c.passages))
                made.kept.append(MadeQuestion(f"made-{named[:12]}", c.kind, text, c.passages))
        advance(made)
    return made


def shown(passages: Sequence[DrawnPassage]) -> str:
    """Formats passages for a prompt, each in a fence. Texts are escaped, so they cannot end the fence."""
    return "\n\n".join(
        f"<doc {n}>{f' {escape_markup(p.title)}' if p.title else ''}\n{escape_markup(p.text)}\n</doc {n}>"
        for n, p in enumerate(passages, 1)
    )


def agrees(said: str, text: MadeText) -> bool:
    """Returns whether the answer `said` agrees with the gold in `text`. If the gold is a list, the answer
    must have all items. Otherwise it must contain a gold, or reach a token F1 of AGREES_F1."""
    if text.items:
        return all(overlap.contains(said, [item]) for item in text.items)
    return bool(overlap.contains(said, text.answers)) or overlap.token_f1(said, text.answers) >= AGREES_F1


async def _checked(
    texts: Sequence[tuple[Candidate, MadeText]],
    draw: Draw,
    generate: Generator,
    prompts: Mapping[str, Prompt],
    made: MadeSet,
) -> list[tuple[Candidate, MadeText]]:
    """Keeps a question if the model answers it with its passages, but not without them. Keeps an unanswerable
    one if the model abstains, given its passage and NEAR similar ones. Counts rejections in `made`."""
    if not texts:
        return []
    answer, alone = prompts["answer"].renderer(), prompts["alone"].renderer()
    chats = []
    for candidate, text in texts:
        passages = candidate.passages
        if candidate.kind == "unanswerable":
            near = draw.like(text.question, passages[0].source, NEAR)
            passages = tuple(dict.fromkeys((*passages, *near)))
        chats.append(answer({"passages": shown(passages), "text": escape_markup(text.question)}))
    left = []
    for (candidate, text), reply in zip(texts, await generate(chats, CHECK), strict=True):
        unanswerable = candidate.kind == "unanswerable"
        if not isinstance(reply, Generated):
            made.rejected["no_reply"] += 1
        elif unanswerable and not abstains(reply.text):
            made.rejected["answerable"] += 1
        elif not unanswerable and (abstains(reply.text) or not agrees(reply.text, text)):
            made.rejected["not_answerable"] += 1
        else:
            left.append((candidate, text))
    asked = [text for candidate, text in left if candidate.kind != "unanswerable"]
    chats = [alone({"text": escape_markup(text.question)}) for text in asked]
    replies, out = iter(await generate(chats, CHECK) if asked else ()), []
    for candidate, text in left:
        own = None if candidate.kind == "unanswerable" else next(replies)
        if isinstance(own, Fault):
            made.rejected["no_reply"] += 1
        elif own is not None and not abstains(own.text) and agrees(own.text, text):
            made.rejected["known_without"] += 1
        else:
            out.append((candidate, text))
    return out
