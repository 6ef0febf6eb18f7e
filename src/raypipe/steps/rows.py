"""Parts that steps share: pure functions on questions, hits and scores; what prompts may use, and a reply
read or a fault.

Candidate makers (`dense`, `bm25`) add hits and scores and leave `order` alone. Selecting steps
(`fuse`, `rerank`) write `order`, and every step that needs a ranking reads `order`. So a recipe with one
candidate maker says `fuse` with that one score, which ranks by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from raypipe.core.calls import about
from raypipe.core.errors import ModelMissing
from raypipe.core.index import Index
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import FIELDS, Ask, Model, Reach
from raypipe.core.records import (
    FAULT,
    SKIPPED_REPLY,
    UNREADABLE,
    Fault,
    Hit,
    Question,
    Reply,
    Span,
    parse_chunk_id,
)
from raypipe.text.html import storable
from raypipe.text.replies import UnreadableReply, read_numbers
from raypipe.text.sanitize import escape_markup, visible
from raypipe.text.template import REPLY, ByLabel, Prompt, field_of
from raypipe.text.thoughts import answer_of


def row_by_row(one: Callable[[Question], Question]) -> Ask:
    async def ask(questions: list[Question]) -> list[Question]:
        return [one(q) for q in questions]

    return ask


def skipping(*names: str) -> Ask:
    skipped = dict.fromkeys(names, SKIPPED_REPLY)
    return row_by_row(lambda q: replace(q, replies={**q.replies, **skipped}))


Scope: TypeAlias = Literal["own", "all"]
"""Scope of a search: in what it cites, or in the whole store."""


async def scopes_of(
    index: Index, questions: Sequence[Question], scope: Scope, where: str
) -> list[tuple[str, ...] | None]:
    """Returns what each question is searched for in: its scope, as far as the step's condition `where` and
    its own hold."""
    found = list[tuple[str, ...] | None]()
    for q in questions:
        own = None if scope == "all" else q.citations
        if own is None and (where or q.where):
            found.append(await index.matching(tuple(filter(None, (where, q.where)))))
        elif own is not None and where:  # its own condition narrowed its citations before the first stage
            found.append(replace(q, citations=await index.narrowed(own, where)).sources())
        else:
            found.append(None if scope == "all" else q.sources())
    return found


def best_first(scores: Mapping[str, float], top: int | None = None) -> tuple[str, ...]:
    """Chunk ids by score, ties by id; the `top` best.

    >>> best_first({"b:0-9": 1.0, "a:0-9": 1.0, "c:0-9": 2.0}, top=2)
    ('c:0-9', 'a:0-9')
    """
    return tuple(sorted(scores, key=lambda chunk: (-scores[chunk], chunk))[:top])


def add_hits(question: Question, found: Sequence[Hit]) -> Question:
    """The question with more hits: one that is there already keeps its place and gains the scores."""
    hits = {h.chunk: h for h in question.hits}
    for h in found:
        old = hits.get(h.chunk, h)
        hits[h.chunk] = replace(old, scores={**old.scores, **h.scores})
    return replace(question, hits=tuple(hits.values()))


def pool_of(question: Question, scores: Sequence[str]) -> frozenset[str]:
    return frozenset(h.chunk for h in question.hits if not h.scores.keys().isdisjoint(scores))


def add_scores(question: Question, name: str, scores: Mapping[str, float]) -> Question:
    scored = (
        replace(h, scores={**h.scores, name: scores[h.chunk]}) if h.chunk in scores else h
        for h in question.hits
    )
    return replace(question, hits=tuple(scored))


def grown(reach: Reach, hits: int) -> Reach:
    """The reach behind a step that adds at most `hits` hits."""
    return replace(reach, hits=reach.hits + hits)


SHOWN = 200  # characters of an unreadable reply that its fault repeats
CHARS_PER_TOKEN = 4
"""Characters of a token of English text, about, with vocabularies of 32,000 to 256,000."""

T = TypeVar("T")


def require_prompt(model: Model, prompts: Iterable[Prompt], own: Iterable[str]) -> None:
    """Raises ValueError for a model that writes nothing, and for a prompt that uses what is neither a field
    of a question, nor a reply, nor the step's `own`."""
    if model.kind != "generator":
        raise ValueError(f"model: expected a generator, found {model.name!r} of kind {model.kind}")
    known = FIELDS.union(own)
    for name in (n for prompt in prompts for n in prompt.variables):
        if name not in known and not name.startswith(REPLY):
            raise ValueError(
                f"prompt: it uses {name!r}, which is no field of a question; expected "
                f"{', '.join(sorted(known))}, {REPLY}NAME or, of a generate step, a name in fill"
            )


def prompt_values(question: Question, names: Iterable[str]) -> dict[str, str]:
    """Fields and replies of a question by name, harmless in a prompt."""
    return {name: escape_markup(field_of(question, name)) for name in names}


def read_reply(said: Generated | Fault, step: str, read: Callable[[str], T]) -> T | Reply:
    """Returns what `read` makes of what a model said behind its thoughts; a reply that is a fault of `step`,
    with its text kept, where `read` raises UnreadableReply, and where the model could not do the row."""
    if isinstance(said, Fault):
        return Reply("", FAULT, fault=replace(said, step=step))
    text = storable(said.text)
    try:
        return read(answer_of(text))
    except UnreadableReply as e:
        detail = f"{e}; found {text[:SHOWN]!r}, {said.generated_tokens} tokens, finish {said.finish}"
        fault = Fault(step, UNREADABLE, detail, transient=False)
        return Reply(text, FAULT, logprob=said.logprob, fault=fault)


def with_replies(question: Question, replies: Mapping[str, Reply]) -> Question:
    """The question with these replies, too; a fault of the moment is also its own: it is asked again."""
    faults = [r.fault for r in replies.values() if r.fault is not None and r.fault.transient]
    return replace(question, replies={**question.replies, **replies}, faults=(*question.faults, *faults))


AdapterChoice = ByLabel[str | None]
"""An adapter of the model for each label of an earlier reply; None: the model without one."""


def require_adapters(model: Model, choice: AdapterChoice) -> None:
    """Raises ModelMissing for an adapter that the model does not have, with the command that makes it."""
    known = {name for name, _ in model.adapters}
    for adapter in choice.values():
        if adapter is not None and adapter not in known:
            raise ModelMissing(
                f"adapter: {model.name!r} has no adapter {adapter!r}; it has "
                f"{', '.join(sorted(known)) or 'none'}. Get it with: raypipe finetune {adapter} --labels DIR "
                f"--base {model.name}, where DIR is what `raypipe labels` made; then name the models file "
                f"that it writes with --models"
            )


async def ask_each(
    generate: Generator,
    ids: Sequence[str],
    chats: Sequence[Chat],
    sampling: Sampling,
    adapter: str | None = None,
) -> list[Generated | Fault]:
    """The replies to the chats, in order, each of which is about the question of one of these ids."""
    with about(ids, each=True):
        return await generate(chats, sampling, adapter)


async def ask_by_adapter(
    generate: Generator,
    questions: Sequence[Question],
    chats: Sequence[Chat],
    sampling: Sampling,
    choice: AdapterChoice,
) -> list[Generated | Fault]:
    """The replies to the chats of these questions, in order: one call for each adapter, all at once."""
    adapters = [choice.of(q) for q in questions]
    rows = {a: [i for i, x in enumerate(adapters) if x == a] for a in dict.fromkeys(adapters)}
    calls = [
        ask_each(generate, [questions[i].id for i in at], [chats[i] for i in at], sampling, adapter)
        for adapter, at in rows.items()
    ]
    said: dict[int, Generated | Fault] = {}
    for at, found in zip(rows.values(), await asyncio.gather(*calls), strict=True):
        said.update(zip(at, found, strict=True))
    return [said[i] for i in range(len(chats))]


@dataclass(frozen=True, slots=True)
class PromptPassage:
    """A passage as its page has it, and as a prompt shows it."""

    source: str  # source id
    span: Span  # in the source's parsed text
    text: str  # of that span
    hidden: tuple[Span, ...]  # of the source
    prompted: str  # visible, harmless, in lower case where that is asked for


async def prompt_passages(
    index: Index, chunks: Sequence[str], lower: bool = False
) -> dict[str, PromptPassage]:
    """The passages of these ids, each once. Raises KeyError for a source that the index does not hold."""
    distinct = list(dict.fromkeys(chunks))
    places = {c: parse_chunk_id(c) for c in distinct}
    sources = list(dict.fromkeys(source for source, _ in places.values()))
    hidden = dict(zip(sources, await index.hidden(sources), strict=True))
    found = {}
    for chunk, text in zip(distinct, await index.texts(distinct), strict=True):
        source, span = places[chunk]
        fit = escape_markup(visible(text, span, hidden[source]))
        found[chunk] = PromptPassage(source, span, text, hidden[source], fit.lower() if lower else fit)
    return found


Numbers: TypeAlias = Callable[
    [Sequence[Question], Sequence[Sequence[str]]], Awaitable[list[tuple[int, ...] | Reply]]
]
"""Questions, and texts shown about each -> the numbers, from 1, of those that a model names, or a fault; ()
where no text is shown: of that it is not asked."""


def number_asker(
    generate: Generator, prompt: Prompt, variable: str, sampling: Sampling, step: str
) -> Numbers:
    """Asks with a prompt that has the texts in `variable`, each on a line behind its number."""
    render, names = prompt.renderer(), frozenset(prompt.variables) - {variable}

    async def ask(
        questions: Sequence[Question], shown: Sequence[Sequence[str]]
    ) -> list[tuple[int, ...] | Reply]:
        asked = [i for i, texts in enumerate(shown) if texts]
        chats = []
        for i in asked:
            lines = "\n".join(f"[{n}] {text}" for n, text in enumerate(shown[i], 1))
            chats.append(render({variable: lines, **prompt_values(questions[i], names)}))
        ids = [questions[i].id for i in asked]
        said = await ask_each(generate, ids, chats, sampling) if chats else []
        out: list[tuple[int, ...] | Reply] = [()] * len(shown)
        for i, reply in zip(asked, said, strict=True):
            out[i] = read_reply(reply, step, partial(read_numbers, most=len(shown[i])))
        return out

    return ask
