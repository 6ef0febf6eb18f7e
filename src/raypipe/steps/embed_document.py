"""Documents to vectors, each in the form that its embedder wants. Knows the model only through the kit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa

from raypipe.core.protocols import Build, Kit, Model
from raypipe.steps.embed import EmbedsChunks, with_vectors
from raypipe.text.template import renderer, uses

FIELDS: Final = frozenset({"title", "abstract"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedDocument(EmbedsChunks):
    """Adds `vector` (dim,) float32, a unit row, of a template over each chunk's `title` and `abstract`: its
    first line, and what stands behind it, as `clean` writes them and a split leaves them whole.

    Other chunks of a document have no title of their own: their first line stands for it. Equal texts are
    embedded once. A vector with a NaN or an infinity, or without a length, is the row's fault: bad_vector.
    """

    model: Model
    passage: str  # a template over title and abstract

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        EmbedsChunks.__post_init__(self)
        found = uses(self.passage)
        if not found or found - FIELDS:
            raise ValueError(
                f"passage: expected a template over title and abstract, found one that uses "
                f"{', '.join(sorted(found)) or 'nothing'}"
            )

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
