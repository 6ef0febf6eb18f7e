"""Makes questions from drawn passages: a model writes them, rules and a second ask decide which are kept.

Knows generators, prompts and rules; not where documents come from. Every call goes through the memo, so a
run that was stopped begins again where it was, and a longer one asks only for what is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from raypipe.core.batches import batches
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.records import digest
from raypipe.evaluation.drawn_passages import Draw, DrawnPassage
from raypipe.metrics import squad
from raypipe.text.made_questions import PASSAGES, MadeKind, MadeText, Rejected, doubles, read, words
from raypipe.text.replies import abstains
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import Prompt

PROMPTS = ("fact", "two", "list", "comparison", "unanswerable", "answer", "alone")
"""Prompts under prompts/questions: one to write each kind, and two that check."""
MIX: tuple[MadeKind, ...] = (
    "fact", "two", "fact", "list", "fact", "unanswerable", "fact", "comparison", "two", "fact",
)  # fmt: skip
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
    """What was made."""

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
    planned: Sequence[Candidate], draw: Draw, wanted: int, generate: Generator, prompts: Mapping[str, Prompt],
    advance: Callable[[MadeSet], None] = lambda made: None,
) -> MadeSet:  # fmt: skip
    """Questions from candidates, in their order, until there are as many as are wanted."""
    made, seen = MadeSet(), list[frozenset[str]]()
    for some in batches(planned, AT_ONCE):
        if len(made.kept) >= wanted:
            break
        texts = await _written(some, generate, prompts, made)
        alike = []
        for candidate, text in texts:
            if doubles(text.question, seen):
                made.rejected["double"] += 1
            else:
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
    """Whether an answer says what the golds say: all things of a list, else the gold or nearly its words."""
    if text.items:
        return all(squad.contains(said, [item]) for item in text.items)
    return bool(squad.contains(said, text.answers)) or squad.token_f1(said, text.answers) >= AGREES_F1


async def _written(
    some: Sequence[Candidate], generate: Generator, prompts: Mapping[str, Prompt], made: MadeSet
) -> list[tuple[Candidate, MadeText]]:
    """What the model wrote and the rules let pass."""
    kept = []
    replies = await generate(written_chats(some, prompts), WRITE)
    for candidate, reply in zip(some, replies, strict=True):
        made.written += 1
        if not isinstance(reply, Generated):
            made.rejected["no_reply"] += 1
            continue
        try:
            kept.append((candidate, read(reply.text, candidate.kind, [p.text for p in candidate.passages])))
        except Rejected as e:
            made.rejected[e.reason] += 1
    return kept


async def _checked(
    texts: Sequence[tuple[Candidate, MadeText]], draw: Draw, generate: Generator,
    prompts: Mapping[str, Prompt], made: MadeSet,
) -> list[tuple[Candidate, MadeText]]:  # fmt: skip
    """Those that the passages answer, and the question alone does not; of the unanswerable ones those that
    neither their passage nor the nearest others answer."""
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
