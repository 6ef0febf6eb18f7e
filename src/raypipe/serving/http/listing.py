"""The documents that are searched: a page of their list, or of the text of one.

Knows the snapshot of a store and the filters that hold; which documents these let through, the snapshot says.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from pydantic import Field

from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.http.replies import RELEASE, SOURCE, Shape, says
from raypipe.serving.http.requests import SourceFilter, StrictBody
from raypipe.serving.query import Filters
from raypipe.serving.store_snapshot import StoreSnapshot
from raypipe.text.cite import lined, place

LISTED, READ_CHARS = 50, 10_000
"""What comes at once where a request does not say: some thousand tokens of a language model either way."""
MOST_LISTED, MOST_CHARS = 1000, 100_000


class ListingBody(StrictBody):
    """The body of /v1/documents."""

    source: str | None = says(
        "Id of a document, as citations name it: its text is returned. Null: the documents are listed.",
        SOURCE, default=None, max_length=100,
    )  # fmt: skip
    offset: int = says(
        "The first document of the list, or with `source` the first character of the text: `next` of the "
        "reply before.", 0, default=0, ge=0, le=2**53,
    )  # fmt: skip
    limit: int | None = says(
        f"Documents (null: {LISTED}; at most {MOST_LISTED} come at once), or with `source` characters (null: "
        f"{READ_CHARS}; at most {MOST_CHARS}).", 20, default=None, ge=1, le=MOST_CHARS,
    )  # fmt: skip
    filters: SourceFilter = Field(default=SourceFilter(), description="Which documents are listed.")


class ListedDocument(Shape):
    """A document; with `source` a part of its text."""

    source: str = says("Its id.", SOURCE)
    url: str | None = says(
        "Url that cites it; of a file of a folder its path; null: none.", "https://en.example.org/ada"
    )
    title: str = says("Its title; with one that is a file of a folder.", "Report", default="")
    page: str | None = says("The pages of the part, as printed; null: it has none.", "p. 7", default=None)
    section: str | None = says("Heading of the section it begins in; null: none.", "Method", default=None)
    text: str | None = says(
        "Its parsed text at `span`; a line break stands for the space before a block.", "Ada ...",
        default=None,
    )  # fmt: skip
    span: tuple[int, int] | None = says("[start, end) in its parsed text.", [0, 7], default=None)


class ListingResponse(Shape):
    """The body of /v1/documents' response."""

    release: str | None = says(RELEASE, "r0001-91774d62")
    documents: list[ListedDocument] = Field(description="Some documents; with `source` the one.")
    total: int = says("Documents that may be searched, or with `source` characters of its text.", 55)
    next: int | None = says("The `offset` of what follows; null: nothing does.", 20)


async def listing(
    over: StoreSnapshot, body: ListingBody, key_filter: Filters, release: str | None
) -> ListingResponse:
    """Raises RequestRefused for a source that is not there, or that the key's filter hides: both alike."""
    start, index = body.offset, over.index
    if body.source is None:
        most = min(body.limit or LISTED, MOST_LISTED)
        asked = body.filters.plain(), key_filter, start, most
        total, urls = await asyncio.to_thread(over.searched, *asked)
        layouts = zip(urls, await index.layouts(list(urls)), strict=True)
        end = start + len(urls)
        documents = [
            ListedDocument(source=source, url=of.url, title=of.title)
            if of
            else ListedDocument(source=source, url=urls[source] or None)
            for source, of in layouts
        ]
    else:
        wanted = Filters(sources=(body.source,))
        _, urls = await asyncio.to_thread(over.searched, wanted, key_filter, 0, 1)
        [text] = await index.source_texts([body.source]) if urls else [None]
        if text is None:
            detail = "Unknown document: expected a `source` that a citation or the list of documents names."
            raise RequestRefused(HTTPStatus.NOT_FOUND, detail)
        [blocks], [layout] = await index.blocks([body.source]), await index.layouts([body.source])
        total = len(text)
        end = min(start + (body.limit or READ_CHARS), total)
        part = lined(text[start:end], blocks, start)
        read = ListedDocument(source=body.source, url=urls[body.source] or None, text=part, span=(start, end))
        if layout:
            at = place(layout, (start, end))
            said = {"url": at.url, "title": at.title, "page": at.page or None, "section": at.section or None}
            read = read.model_copy(update=said)
        documents = [read]
    return ListingResponse(
        release=release, documents=documents, total=total, next=end if end < total else None
    )
