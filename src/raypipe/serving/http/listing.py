"""Listing of the searchable documents, and reading of one document's text, a part at a time.

A store's snapshot (its tables at one moment) decides which documents pass the filters.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from pydantic import Field

from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.http.replies import PAGE, RELEASE, SOURCE, Shape, says
from raypipe.serving.http.requests import SourceFilter, StrictBody
from raypipe.serving.store_snapshot import StoreSnapshot
from raypipe.text.context import lined, place
from raypipe.text.filters import Filters

LISTED, READ_CHARS = 50, 10_000
"""Default number of documents in a list, and of characters in a text: some thousand tokens each."""
MOST_LISTED, MOST_CHARS = 1000, 100_000


class ListingBody(StrictBody):
    """The body of /v1/documents."""

    source: str | None = says(
        "Id of the document to read, as in citations. Null: list documents.",
        None,
        default=None,
        max_length=100,
    )
    offset: int = says(
        "Index of the first document; with `source`, of the first character.", 0, default=0, ge=0, le=2**53
    )
    limit: int | None = says(
        f"Documents: default {LISTED}, at most {MOST_LISTED}. With `source`, characters: default "
        f"{READ_CHARS}, at most {MOST_CHARS}.",
        20,
        default=None,
        ge=1,
        le=MOST_CHARS,
    )
    filters: SourceFilter = Field(default=SourceFilter(), description="Which documents are listed.")


class ListedDocument(Shape):
    """A document; with `source` a part of its text."""

    source: str = says("Its id.", SOURCE)
    url: str | None = says("Its url, or its path if it is a file of a folder; null: none.", PAGE)
    title: str = says("Its title; only for a file of a folder.", "Report", default="")
    page: str = says("Pages of the part, as printed; empty if it has none.", "p. 7", default="")
    section: str = says("Heading of the section that the part begins in.", "Method", default="")
    text: str = says("Its parsed text at `span`, with a line for each block.", "Ada ...", default="")
    span: tuple[int, int] = says("[start, end) in its parsed text.", [0, 7], default=(0, 0))


class ListingResponse(Shape):
    """The body of /v1/documents' response."""

    release: str | None = says(RELEASE, "r0001-91774d62")
    documents: list[ListedDocument] = Field(description="Some documents; with `source`, only that one.")
    total: int = says("Number of searchable documents; with `source`, of characters of its text.", 55)
    next: int | None = says("The `offset` of the next part; null: this is the last.", 20)


async def listing(
    over: StoreSnapshot, body: ListingBody, key_filter: Filters, release: str | None
) -> ListingResponse:
    """Lists documents, or reads a part of the document that `body` names as `source`. Raises RequestRefused
    if `source` does not exist, and the same error if `key_filter` hides it."""
    start, source, index = body.offset, body.source, over.index
    asked = (body.filters.plain(), key_filter, start, min(body.limit or LISTED, MOST_LISTED))
    if source is not None:
        asked = (Filters(sources=(source,)), key_filter, 0, 1)
    total, urls = await asyncio.to_thread(over.searched, *asked)
    layouts = await index.layouts(list(urls))
    documents = [
        ListedDocument(source=s, url=of.url if of else urls[s] or None, title=of.title if of else "")
        for s, of in zip(urls, layouts, strict=True)
    ]
    end = start + len(urls)
    if source is not None:
        if not urls:
            detail = "Unknown document: expected a `source` that a citation or the list of documents names."
            raise RequestRefused(HTTPStatus.NOT_FOUND, detail)
        [text], [blocks] = await index.source_texts([source]), await index.blocks([source])
        total = len(text or "")
        end = min(start + (body.limit or READ_CHARS), total)
        span = (start, max(start, end))
        part: dict[str, Any] = {"text": lined((text or "")[start:end], blocks, start), "span": span}
        if layouts[0]:
            at = place(layouts[0], span)
            part |= {"url": at.url, "page": at.page, "section": at.section}
        documents = [documents[0].model_copy(update=part)]
    return ListingResponse(
        release=release, documents=documents, total=total, next=end if end < total else None
    )
