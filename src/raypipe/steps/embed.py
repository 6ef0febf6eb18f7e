"""Steps that add a vector to each chunk. `Embed` embeds the chunk's text, `EmbedDocument` a template filled
with title and abstract. `EmbedContextual` lets a language model write a sentence about the chunk's place in
the document, and embeds the sentence and the chunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.call_context import OF_SOURCES, about
from raypipe.core.errors import ConfError
from raypipe.core.llm import Generator, Sampling
from raypipe.core.protocols import Build, CorpusBound, Kit, Model
from raypipe.core.protocols import Embed as Embedder
from raypipe.core.records import Fault, Reply
from raypipe.steps.field_checks import require_positive, require_prompt
from raypipe.steps.prompts import CHARS_PER_TOKEN, read_reply
from raypipe.text.replies import placed, read_text
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import Prompt, renderer, uses


class EmbedsChunks:
    """Base class of the steps that write vectors: their model, columns and bound on calls."""

    __slots__ = ()
    model: Model

    def __post_init__(self) -> None:
        if self.model.kind != "embedder":
            raise ValueError(f"model: expected an embedder, found {self.model.name!r}, a {self.model.kind}")

    def reads(self) -> frozenset[str]:
        return frozenset({"chunk_text", "fault"})

    def writes(self) -> frozenset[str]:
        return frozenset({"vector", "fault"})

    def bound(self, chars: float) -> CorpusBound:
        return CorpusBound(1, chars, calls=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed(EmbedsChunks):
    """Adds `vector` (dim,), a unit vector, for each `chunk_text`. Equal texts of a batch are embedded once.

    Vectors are float32, or float16 for a model that computes in 16 bits. A row whose vector is zero, or holds
    a NaN or an infinity, gets the fault bad_vector.
    """

    model: Model
    lower: bool = False  # the model reads chunks in lower case

    version: ClassVar[int] = 1

    def open(self, kit: Kit) -> Build:
        embedder = kit.embedder(self.model)

        async def build(table: pa.Table) -> pa.Table:
            texts = table["chunk_text"].to_pylist()
            if self.lower:
                texts = [None if t is None else t.lower() for t in texts]
            return await with_vectors(table, texts, self.model, embedder)

        return build


async def with_vectors(
    table: pa.Table, texts: list[str | None], model: Model, embedder: Embedder
) -> pa.Table:
    """Adds the column `vector` to a table, null for a row with a fault. A vector that is zero or not finite
    gives its row the fault bad_vector. `texts` has the text to embed of each row, or None if the row has a
    fault. Raises ConfError if the embedder's vectors do not have the shape that models.yaml declares."""
    place = {text: i for i, text in enumerate(dict.fromkeys(t for t in texts if t is not None))}
    distinct = np.asarray(await embedder(list(place), "passage"), np.float32)  # (distinct, dim)
    if distinct.shape != (len(place), model.dim):
        raise ConfError(
            f"model {model.name!r}: expected {len(place)} vectors of {model.dim} numbers as models.yaml "
            f"says, found an array of shape {distinct.shape}. Correct dim or the weights"
        )
    good = np.isfinite(distinct).all(axis=1) & (distinct != 0).any(axis=1)
    rows = np.array([place.get(t, -1) if t is not None else -1 for t in texts], np.int64)
    fine = (rows >= 0) & np.append(good, False)[rows]
    vectors = np.zeros((len(texts), model.dim), np.float16 if model.half else np.float32)
    vectors[fine] = distinct[rows[fine]]
    bad = pc.is_null(table["fault"]).to_numpy() & ~fine
    array = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), model.dim, mask=pa.array(~fine))
    faults = {}
    for i in np.flatnonzero(bad).tolist():
        start, end = (table[n][i].as_py() for n in ("start", "end"))
        expected = f"expected a unit vector of {model.name} for characters {start} to {end}"
        faults[i] = Fault("embed", "bad_vector", f"{expected}, found NaN, infinity or zero", transient=False)
    return with_faults(table, faults).append_column("vector", array)


def with_faults(table: pa.Table, faults: Mapping[int, Fault]) -> pa.Table:
    """Sets faults, given by row number. In these rows all other columns except `source` become null."""
    if not faults:
        return table
    rows = table.to_pylist()
    for i, fault in faults.items():
        rows[i] = dict.fromkeys(rows[i]) | {"source": rows[i]["source"], "fault": asdict(fault)}
    return pa.Table.from_pylist(rows, schema=table.schema)


FIELDS: Final = frozenset({"title", "abstract"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedDocument(EmbedsChunks):
    """Adds `vector` (dim,), a unit vector, of a template filled with each chunk's `title` and `abstract`.

    `title` is the chunk's first line, `abstract` its other lines. `clean` writes documents in this form, so
    it fits a document that is one chunk. Later chunks of a split document have no title; their first line is
    used as one. Equal texts of a batch are embedded once. A bad vector is a fault, as in `Embed`.
    """

    model: Model
    passage: str  # template that uses title, abstract or both

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        EmbedsChunks.__post_init__(self)
        used = uses(self.passage)
        if not used or used - FIELDS:
            names = ", ".join(sorted(used)) or "nothing"
            raise ValueError(f"passage: expected a template over title and abstract, found one over {names}")

    def open(self, kit: Kit) -> Build:
        embedder, render, names = kit.embedder(self.model), renderer(self.passage), uses(self.passage)

        def form(chunk: str) -> str:
            title, _, abstract = chunk.partition("\n")
            values = {"title": title, "abstract": abstract}
            return render({n: values[n] for n in names})

        async def build(table: pa.Table) -> pa.Table:
            texts = [None if t is None else form(t) for t in table["chunk_text"].to_pylist()]
            return await with_vectors(table, texts, self.model, embedder)

        return build


OWN = frozenset({"document", "passage"})
"""All variables that a prompt of `EmbedContextual` may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedContextual(EmbedsChunks):
    """Embeds each chunk together with a sentence that `writer` writes about the chunk's place.

    Adds `vector` (dim,), a unit vector of the sentence, a line break and the chunk. The prompt shows at most
    `document_chars` characters of the document. If the document is longer, a third is from its beginning and
    two thirds are from around the chunk. If the writer's text is unreadable or a final fault, or if the
    writer is declared absent (loader: none), the chunk is embedded without a sentence. A transient fault of
    the writer becomes the row's fault. A bad vector is a fault, as in `Embed`.
    """

    model: Model  # the embedder
    writer: Model  # a generator
    prompt: Prompt
    document_chars: int = 3000  # characters of the document that the prompt shows
    max_tokens: int = 60  # tokens of a reply, as the writer counts; its thoughts have a further budget

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        EmbedsChunks.__post_init__(self)
        require_prompt(self.writer, [self.prompt], OWN)
        if strange := sorted({*self.prompt.variables} - OWN):
            raise ValueError(f"prompt: expected one that uses only {sorted(OWN)}, found {strange[0]!r}")
        require_positive(self, "document_chars")

    def reads(self) -> frozenset[str]:
        return EmbedsChunks.reads(self) | {"text", "start", "end"}

    def bound(self, chars: float) -> CorpusBound:
        if self.writer.absent:
            return EmbedsChunks.bound(self, chars)
        prompt = self.document_chars + chars + len(self.prompt.system) + len(self.prompt.user)
        most, reply = self.writer.max_model_len, self.sampling().max_tokens
        tokens = {"tokens": most, "prompt_tokens": min(prompt / CHARS_PER_TOKEN, most), "reply_tokens": reply}
        return CorpusBound(1, chars, calls=2, replies=1, **tokens)

    def open(self, kit: Kit) -> Build:
        embedder, render = kit.embedder(self.model), self.prompt.renderer()
        writers: list[Generator] = []  # opened by the first chunk: a worker that only parses needs none

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
        return Sampling(max_tokens=self.max_tokens + self.writer.thought_tokens)


def excerpt(text: str, start: int, end: int, most: int) -> str:
    """Returns a text of at most `most` characters unchanged, else its beginning and the part around the span.

    >>> excerpt("0123456789abcdefghij", 14, 16, 9)
    '012 ... cdefgh'
    """
    if len(text) <= most:
        return text
    head = most // 3
    around = most - head
    first = min(max((start + end - around) // 2, head), len(text) - around)
    return f"{text[:head]} ... {text[first : first + around]}"
