"""Functions that several steps share: on questions, hits and scores, on prompts, and on replies.

Steps that find candidates (`dense`, `bm25`) add hits and scores and do not change `order`. Steps that select
(`fuse`, `rerank`) write `order`, and every step that needs a ranking reads `order`. A recipe with one
`dense` or `bm25` step therefore needs `fuse` with that one score, to rank by it.
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
"""Scope of a search: the sources that the question cites (own), or the whole store (all)."""


async def scopes_of(
    index: Index, questions: Sequence[Question], scope: Scope, where: str
) -> list[tuple[str, ...] | None]:
    """Returns the sources to search for each question; None: the whole store.

    Only sources that fulfil the step's condition `where` and the question's own condition are returned."""
    found = list[tuple[str, ...] | None]()
    for q in questions:
        own = None if scope == "all" else q.citations
        if own is None and (where or q.where):
            found.append(await index.matching(tuple(filter(None, (where, q.where)))))
        elif own is not None and where:  # citations fulfil the question's own condition before the first step
            found.append(replace(q, citations=await index.narrowed(own, where)).sources())
        else:
            found.append(None if scope == "all" else q.sources())
    return found


def best_first(scores: Mapping[str, float], top: int | None = None) -> tuple[str, ...]:
    """Returns the chunk ids of the `top` best scores, best first; ties are ordered by id.

    >>> best_first({"b:0-9": 1.0, "a:0-9": 1.0, "c:0-9": 2.0}, top=2)
    ('c:0-9', 'a:0-9')
    """
    return tuple(sorted(scores, key=lambda chunk: (-scores[chunk], chunk))[:top])


def add_hits(question: Question, found: Sequence[Hit]) -> Question:
    """Adds hits to a question. A passage that is a hit already keeps its place and gains the new scores."""
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
    """Returns the limits on passages after a step that adds at most `hits` hits."""
    return replace(reach, hits=reach.hits + hits)


SHOWN = 200  # characters of an unreadable reply that its fault quotes
CHARS_PER_TOKEN = 4
"""Approximate characters per token of English text, with vocabularies of 32,000 to 256,000 tokens."""

T = TypeVar("T")


def require_prompt(model: Model, prompts: Iterable[Prompt], own: Iterable[str]) -> None:
    """Checks that `model` generates text and that the prompts use only known variables: fields of a question,
    replies, and `own`, the step's variables. Raises ValueError otherwise."""
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
    """Returns fields and replies of a question by name, escaped so that they cannot forge chat marks."""
    return {name: escape_markup(field_of(question, name)) for name in names}


def read_reply(said: Generated | Fault, step: str, read: Callable[[str], T]) -> T | Reply:
    """Parses a model's text with `read`, without the thoughts before the answer.

    Returns a faulty reply that names `step` if the model returned a fault, or if `read` raises
    UnreadableReply; in the second case the faulty reply keeps the text."""
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
    """Adds replies to a question. Their transient faults become the question's: a later run retries it."""
    faults = [r.fault for r in replies.values() if r.fault is not None and r.fault.transient]
    return replace(question, replies={**question.replies, **replies}, faults=(*question.faults, *faults))


AdapterChoice = ByLabel[str | None]
"""Name of the model's LoRA adapter for each label of an earlier reply; None: the model without an adapter."""


def require_adapters(model: Model, choice: AdapterChoice) -> None:
    """Raises ModelMissing if the model lacks a chosen adapter, with the command that trains the adapter."""
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
    """Sends chats to a model and returns the replies, in order. Chat i belongs to the question `ids[i]`."""
    with about(ids, each=True):
        return await generate(chats, sampling, adapter)


async def ask_by_adapter(
    generate: Generator,
    questions: Sequence[Question],
    chats: Sequence[Chat],
    sampling: Sampling,
    choice: AdapterChoice,
) -> list[Generated | Fault]:
    """Sends the chats of questions, one concurrent call per adapter. Returns the replies in order."""
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
    """A passage: its text in its page, and its text in a prompt."""

    source: str  # source id
    span: Span  # in the source's parsed text
    text: str  # the source's text in `span`
    hidden: tuple[Span, ...]  # hidden spans of the whole source
    prompted: str  # the visible text, escaped; in lower case if the step asks for it


async def prompt_passages(
    index: Index, chunks: Sequence[str], lower: bool = False
) -> dict[str, PromptPassage]:
    """Loads the passages of chunk ids, each once. Raises KeyError if the index lacks a source."""
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
"""Questions and the texts shown for each -> the numbers (from 1) that a model names, or a faulty reply. A
question without texts gives (), without a call."""


def number_asker(
    generate: Generator, prompt: Prompt, variable: str, sampling: Sampling, step: str
) -> Numbers:
    """Returns a function that asks a model to choose among numbered texts. The prompt gets the texts in
    `variable`, each on a line after its number."""
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
