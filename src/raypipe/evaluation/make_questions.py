"""Makes questions from a store's documents: passages are drawn, a model writes, rules and a second ask keep.

Passages are sentences, up to PASSAGE_CHARS together, of the text that `parse` gives of a source; their spans
are those of that text. The draw follows from the seed and from the documents alone, so a second one is equal.
Every call goes through the memo, so a run that was stopped begins again where it was, and a longer one asks
only for what is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np

from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.records import Fault, Span, digest
from raypipe.metrics import overlap
from raypipe.store import Store
from raypipe.text.bm25 import DEFAULTS, Bm25Corpus, scores
from raypipe.text.html import ParsedPage, ParseJob, SandboxedParser, fold, storable
from raypipe.text.made_questions import PASSAGES, MadeKind, MadeText, Rejected, doubles, read, words
from raypipe.text.replies import abstains
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import Prompt
from raypipe.text.words import analyse, sentences

PASSAGE_CHARS, LEAST_CHARS = 900, 200
MOST_DOCUMENTS = 2000  # that are read for a draw: some 40 MB of text
MOST_PASSAGES = 6000  # among which others like one are looked for
MOST_OF_ONE = 50  # passages of one document
LETTERS = 0.6  # share of a passage's characters that are letters, at least: no tables, no menus
KINDS = ("page", "document")  # of sources that are drawn from


@dataclass(frozen=True, slots=True)
class DrawnPassage:
    """A passage of a document."""

    source: str  # source id
    span: Span  # in the source's parsed text
    text: str
    document: str  # id or url of the document; may be ""
    title: str  # may be ""


@dataclass(frozen=True, slots=True)
class Draw:
    """Passages in the order in which they are drawn: one of each document, then a second one of each, ..."""

    passages: tuple[DrawnPassage, ...]
    documents: int  # with a passage
    unreadable: int  # documents that could not be parsed, or have no passage
    corpus: Bm25Corpus = field(repr=False)  # words of the passages

    def like(self, text: str, without: str | None, top: int) -> list[DrawnPassage]:
        """The passages that share most words with a text (BM25), best first; none of the source `without`."""
        query, _ = analyse(text, "stems")
        k1, b = DEFAULTS["lucene"]
        found, values = scores(self.corpus, np.unique(query), "lucene", k1, b)
        ranked = sorted(zip(found.tolist(), values.tolist(), strict=True), key=lambda f: (-f[1], f[0]))
        others = (self.passages[i] for i, _ in ranked if self.passages[i].source != without)
        return [p for p, _ in zip(others, range(top), strict=False)]


def draw(store: Store, seed: int) -> Draw:
    """Draws from all documents of a store, the first MOST_DOCUMENTS in the order that the seed gives."""
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
    """Source id -> its text as `parse` gives it; None where it has none."""
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
    """The passages of a text, one after the other, without those that are no prose, and without those in
    which the page carries something that it does not show."""
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
    """Maps each source id to (name, title), for all documents and cited pages. The name is the document's id
    or the page's URL."""
    found: dict[str, tuple[str, str]] = {}
    for row in arrow.with_id_texts(store.scan("documents").to_pylist()):
        found.setdefault(row["source"], (row["id"], row["title"]))
    for batch in store.batches("questions", ["citations"]):
        for cited in arrow.with_id_texts(batch["citations"].to_pylist()):
            for c in cited or ():
                if c["page"] is not None:
                    found.setdefault(c["page"], (c["url"], ""))
    return found


PROMPTS = ("fact", "two", "list", "comparison", "unanswerable", "answer", "alone")
"""Prompts under prompts/questions: one to write each kind, and two that check."""
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
"""The kinds of ten candidates, in turn."""
CANDIDATES = 2  # that are written for each question wanted, at most: the rest is rejected
CALLS: Mapping[MadeKind, int] = {"fact": 3, "two": 3, "list": 3, "comparison": 3, "unanswerable": 2}
"""Calls of a candidate at most: written, answered from its passages, answered without them."""
AT_ONCE = 16  # candidates: what a kill loses at most
NEAR = 5  # passages in which an answer to an unanswerable question is looked for
AGREES_F1 = 0.6  # token F1 from which an answer agrees with a gold
WRITE, CHECK = Sampling(max_tokens=400), Sampling(max_tokens=100)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question to be written."""

    kind: MadeKind
    passages: tuple[DrawnPassage, ...]


@dataclass(frozen=True, slots=True)
class MadeQuestion:
    """A question that was kept."""

    id: str
    kind: MadeKind
    text: MadeText
    passages: tuple[DrawnPassage, ...]


@dataclass(slots=True)
class MadeSet:
    """Questions that were made."""

    kept: list[MadeQuestion] = field(default_factory=list)
    written: int = 0  # candidates
    rejected: Counter[str] = field(default_factory=Counter)  # reason (text.made_questions.REASONS)


def candidates(draw: Draw, wanted: int) -> list[Candidate]:
    """The candidates of a draw, at most CANDIDATES for each question wanted. Two passages are one that is
    drawn, and the one of another document that shares most words with it."""
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
    """Questions from candidates, in their order, until there are as many as are wanted."""
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
    """Passages as a prompt shows them: fenced, and unable to leave their fence."""
    return "\n\n".join(
        f"<doc {n}>{f' {escape_markup(p.title)}' if p.title else ''}\n{escape_markup(p.text)}\n</doc {n}>"
        for n, p in enumerate(passages, 1)
    )


def agrees(said: str, text: MadeText) -> bool:
    """Returns whether an answer says what the golds say: all things of a list, else the gold or nearly its
    words."""
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
    """Returns those that the passages answer, and the question alone does not; of the unanswerable ones those
    that neither their passage nor the nearest others answer."""
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
    for pair, reply in zip(texts, await generate(chats, CHECK), strict=True):
        unanswerable = pair[0].kind == "unanswerable"
        if not isinstance(reply, Generated):
            made.rejected["no_reply"] += 1
        elif abstains(reply.text) is not unanswerable:
            made.rejected["answerable" if unanswerable else "not_answerable"] += 1
        elif not unanswerable and not agrees(reply.text, pair[1]):
            made.rejected["not_answerable"] += 1
        else:
            left.append(pair)
    asked = [pair for pair in left if pair[0].kind != "unanswerable"]
    chats = [alone({"text": escape_markup(t.question)}) for _, t in asked]
    said = dict(zip(map(id, asked), await generate(chats, CHECK) if asked else [], strict=True))
    out = []
    for pair in left:
        own = said.get(id(pair))
        if id(pair) in said and not isinstance(own, Generated):
            made.rejected["no_reply"] += 1
        elif isinstance(own, Generated) and not abstains(own.text) and agrees(own.text, pair[1]):
            made.rejected["known_without"] += 1
        else:
            out.append(pair)
    return out
