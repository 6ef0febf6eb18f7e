"""Contextual embedding: a language model writes where each chunk stands in its document, and the vector is of
that and of the chunk.

The shape is that of contextual retrieval (Anthropic 2024), with a window of the document where the budget
does not hold all of it. What is searched by words, reranked and shown stays the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from raypipe.core import arrow
from raypipe.core.calls import OF_SOURCES, about
from raypipe.core.llm import Generator, Sampling
from raypipe.core.protocols import Build, CorpusBound, Kit, Model
from raypipe.core.records import Fault, Reply
from raypipe.steps.embed import EmbedsChunks, with_faults, with_vectors
from raypipe.steps.model_replies import CHARS_PER_TOKEN, read_reply, require_prompt
from raypipe.text.replies import placed, read_text
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import Prompt

OWN = frozenset({"document", "passage"})
"""Variables that a prompt of this step may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedContextual(EmbedsChunks):
    """Adds `vector` (dim,), a unit row, for each `chunk_text` behind what `writer` says of its place.

    The prompt shows `document_chars` characters of the document: all of it, or a third of them from its
    beginning and the rest from around the chunk. Where a reply cannot be read, the vector is of the chunk
    alone; so it is of all chunks where the writer is absent. A reply that does not come for now is the row's
    fault. A bad vector is one, too, as of `embed`.
    """

    model: Model  # the embedder
    writer: Model  # a generator
    prompt: Prompt
    document_chars: int = 3000
    max_tokens: int = 60  # of a reply

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        EmbedsChunks.__post_init__(self)
        require_prompt(self.writer, [self.prompt], OWN)
        if strange := sorted({*self.prompt.variables} - OWN):
            raise ValueError(f"prompt: expected one that uses {sorted(OWN)} alone, found {strange[0]!r}")
        if self.document_chars < 1:
            raise ValueError(f"document_chars: expected at least 1, found {self.document_chars}")

    def reads(self) -> frozenset[str]:
        return EmbedsChunks.reads(self) | {"text", "start", "end"}

    def bound(self, chars: float) -> CorpusBound:
        if self.writer.absent:
            return EmbedsChunks.bound(self, chars)
        prompt = self.document_chars + chars + len(self.prompt.system) + len(self.prompt.user)
        most, reply = self.writer.max_model_len, self.sampling().max_tokens
        prompt_tokens = min(prompt / CHARS_PER_TOKEN, most)
        return CorpusBound(
            1, chars, calls=2, replies=1, tokens=most, prompt_tokens=prompt_tokens, reply_tokens=reply
        )

    def open(self, kit: Kit) -> Build:
        embedder, render = kit.embedder(self.model), self.prompt.renderer()
        writers: list[Generator] = []  # opened by the first chunk: what parses and splits has no engine

        async def build(table: pa.Table) -> pa.Table:
            texts: list[str | None] = table["chunk_text"].to_pylist()
            if self.writer.absent:
                return await with_vectors(table, texts, self.model, embedder)
            if not writers:
                writers.append(kit.generator(self.writer))
            whole, starts, ends = (table[n].to_pylist() for n in ("text", "start", "end"))
            asked = [i for i, text in enumerate(texts) if text is not None]
            documents = [excerpt(whole[i], starts[i], ends[i], self.document_chars) for i in asked]
            chats = [
                render({"document": escape_markup(document), "passage": escape_markup(texts[i] or "")})
                for i, document in zip(asked, documents, strict=True)
            ]
            faults = dict[int, Fault]()
            sources = arrow.id_texts(table["source"])
            with about([sources[i] for i in asked], OF_SOURCES, each=True):
                replies = await writers[0](chats, self.sampling()) if chats else []
            for i, said in zip(asked, replies, strict=True):
                where = read_reply(said, "embed_contextual", read_text)
                if not isinstance(where, Reply):
                    texts[i] = placed(where.text, texts[i] or "")
                elif where.fault is not None and where.fault.transient:
                    texts[i], faults[i] = None, where.fault
            return await with_vectors(with_faults(table, faults), texts, self.model, embedder)

        return build

    def sampling(self) -> Sampling:
        """Returns what is sent with each chat."""
        return Sampling(max_tokens=self.max_tokens + self.writer.thought_tokens)


def excerpt(text: str, start: int, end: int, most: int) -> str:
    """The text, where it has at most `most` characters; else its beginning and what stands around a span.

    >>> excerpt("0123456789abcdefghij", 14, 16, 9)
    '012 ... cdefgh'
    """
    if len(text) <= most:
        return text
    head = most // 3
    around = most - head
    first = min(max((start + end - around) // 2, head), len(text) - around)
    return f"{text[:head]} ... {text[first : first + around]}"
