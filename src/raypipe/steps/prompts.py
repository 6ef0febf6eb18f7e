"""Functions that steps share: they fill prompts, send chats, read models' texts and add replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

from raypipe.core.call_context import about
from raypipe.core.index import Index
from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Ask
from raypipe.core.records import (
    FAULT,
    SKIPPED_REPLY,
    UNREADABLE,
    Fault,
    Question,
    Reply,
    Span,
    parse_chunk_id,
)
from raypipe.steps.hits import row_by_row
from raypipe.text.page_parser import storable
from raypipe.text.replies import UnreadableReply, read_numbers
from raypipe.text.sanitize import escape_markup, visible
from raypipe.text.template import ByLabel, Prompt, field_of
from raypipe.text.thoughts import answer_of


def skipping(*names: str) -> Ask:
    skipped = dict.fromkeys(names, SKIPPED_REPLY)
    return row_by_row(lambda q: replace(q, replies={**q.replies, **skipped}))


SHOWN = 200  # characters of an unreadable reply that its fault quotes
CHARS_PER_TOKEN = 4
"""Approximate characters per token of English text, with vocabularies of 32,000 to 256,000 tokens."""

T = TypeVar("T")


def prompt_values(question: Question, names: Iterable[str]) -> dict[str, str]:
    """Returns a question's fields and replies by name, as texts. Marks of a chat in them are escaped, so that
    no text can imitate a message."""
    return {name: escape_markup(field_of(question, name)) for name in names}


def read_reply(said: Generated | Fault, step: str, read: Callable[[str], T]) -> T | Reply:
    """Parses a model's text with `read`, after dropping the thoughts before the answer. Returns a reply with
    a fault of `step` if `said` is a fault, or if `read` raises UnreadableReply. In the second case the reply
    keeps the whole text."""
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
    """Adds replies to a question. A transient fault of a reply is added to the question, too, so that a later
    run tries the question again."""
    faults = [r.fault for r in replies.values() if r.fault is not None and r.fault.transient]
    return replace(question, replies={**question.replies, **replies}, faults=(*question.faults, *faults))


async def ask_each(
    generate: Generator,
    ids: Sequence[str],
    chats: Sequence[Chat],
    sampling: Sampling,
    adapter: str | None = None,
) -> list[Generated | Fault]:
    """Sends chats to a model. Returns a text or fault for each, in order. `ids` has their questions' ids."""
    with about(ids, each=True):
        return await generate(chats, sampling, adapter)


async def ask_by_adapter(
    generate: Generator,
    questions: Sequence[Question],
    chats: Sequence[Chat],
    sampling: Sampling,
    choice: ByLabel[str | None],
) -> list[Generated | Fault]:
    """Sends each question's chat to the model with the LoRA adapter that `choice` names; None: no adapter.
    Makes one concurrent call per adapter. Returns as `ask_each`."""
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
    """A passage with two texts: as its source has it, and as a prompt shows it."""

    source: str  # source id
    span: Span  # in the source's parsed text
    text: str  # the source's text in `span`
    hidden: tuple[Span, ...]  # hidden spans of the whole source
    prompted: str  # the visible text, escaped; in lower case if the step asks for it


async def prompt_passages(
    index: Index, chunks: Sequence[str], lower: bool = False
) -> dict[str, PromptPassage]:
    """Loads passages: chunk id -> passage. `lower` puts the prompt's texts in lower case. Raises KeyError if
    the index lacks a source."""
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
"""(questions, texts shown for each) -> for each question the numbers, from 1, of texts that a model names, or
a reply with a fault. A question without texts gives (), without a call."""


def number_asker(
    generate: Generator, prompt: Prompt, variable: str, sampling: Sampling, step: str
) -> Numbers:
    """Returns a function that lets a model choose among texts by number. The variable `variable` of the
    prompt gets a line for each text, such as "[1] TEXT". `step` is the name of the step in faults."""
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
