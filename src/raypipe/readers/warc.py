"""Reader of a crawl's WARC files: one document per address, from the page that was fetched last.

One record has two headers, then the page (a `.warc.gz` compresses each record separately):

    WARC/1.0
    WARC-Type: response
    WARC-Target-URI: https://example.org/velora
    WARC-Date: 2024-03-05T23:18:31Z

    HTTP/1.1 200 OK
    Content-Type: text/html; charset=utf-8

Pages are responses with status 200 and the type HTML or plain text, and the texts of Common Crawl's WET
files. All other records are only counted: requests, redirects, images, PDFs, and revisits, which report an
unchanged page. A page without text gives no document.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from raypipe.core.errors import DataError, unstopped
from raypipe.core.records import Document, Layout, SourceKind
from raypipe.readers import files
from raypipe.readers.documents import DOCUMENT_LIMITS, text_files
from raypipe.readers.fields import fields_of, order_of
from raypipe.readers.file_read import FileRead
from raypipe.readers.rows import ReadCounts, Row, UnusableLine, source_of
from raypipe.readers.unpack import AGAIN

KINDS: dict[str, SourceKind] = {
    "text/html": "page",
    "application/xhtml+xml": "page",
    "text/plain": "document",
}
DATE = "WARC-Date"
NAME = re.compile(r"\A.+\.warc(?:\.w[ae]t)?(?:\.gz)?", re.I)
_CODECS = {"br": "brotli", "zstd": "zstd"}  # content coding of HTTP -> Arrow's name of it
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")


def is_warc(file: Path) -> bool:
    return NAME.fullmatch(file.name) is not None


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    return files.named_files(paths, is_warc, "files named .warc or .warc.gz", below=True)


def rows(paths: Iterable[str | Path], read: FileRead) -> Iterator[Row]:
    """Yields a row for the newest page of each address: its document or its fault. Reads all files twice,
    first to find the newest pages."""
    inputs, counts, newest = files_of(paths), read.counts, read.seen.newest
    for file in inputs:
        for where, url, date, _ in _pages(file, ReadCounts()):
            with suppress(UnusableLine):
                newest.note(url, order_of(date, DATE), where)
    for file in inputs:
        for where, url, date, record in _pages(file, counts):
            counts.lines += 1
            try:
                if newest.has(url, order_of(date, DATE), where):
                    yield from read.settled(where, partial(_row, where, url, record), once=True)
                else:
                    counts.older_pages += 1
            except UnusableLine as e:
                yield read.refused(where, e)


def _pages(file: Path, counts: ReadCounts) -> Iterator[tuple[str, str, str, Any]]:
    """Yields (FILE:NUMBER, address, date, record) for each page. Raises DataError if the file is damaged."""
    from warcio.archiveiterator import ArchiveIterator  # imported here: it takes .1 s, only crawls need it
    from warcio.exceptions import ArchiveLoadFailed

    counts.files += 1
    before = counts.bytes_read
    with file.open("rb") as raw:
        try:
            records = ArchiveIterator(raw)
            for n, record in enumerate(records, 1):
                url = record.rec_headers.get_header("WARC-Target-URI") or ""
                if url and _kind(record):
                    date = record.rec_headers.get_header(DATE) or ""
                    yield f"{file.name}:{n}", url.strip("<>"), date, record
                else:
                    counts.other_records += 1
                records.read_to_end(record)
                counts.bytes_read = before + raw.tell()
                # warcio treats a truncated record as a complete one
                if left := getattr(record.raw_stream, "limit", 0):
                    raise DataError(f"{file}: record {n} is cut, {left:,} bytes are missing. {AGAIN}")
        except (ArchiveLoadFailed, EOFError, OSError, zlib.error) as e:
            raise DataError(f"{file}: damaged or no WARC file: {unstopped(e)}. {AGAIN}") from e


def _kind(record: Any) -> SourceKind | None:
    """Returns the source kind of a page; None for a record that is no page."""
    head = record.http_headers
    if record.rec_type == "conversion":  # in a WET file: the text that Common Crawl extracted from a page
        return KINDS.get(str(record.rec_headers.get_header("Content-Type")))
    if head is None or record.rec_type != "response" or str(head.get_statuscode()) != "200":
        return None
    return KINDS.get(head.get_header("Content-Type", "").partition(";")[0].strip().lower())


def _row(where: str, url: str, record: Any) -> Row | None:
    """Makes a document of a page, with the address as id. Returns None if the page has no text. Raises
    UnusableLine if the page is too large or cannot be decoded."""
    most = DOCUMENT_LIMITS.text_bytes
    data = _body(record, most + 1)
    if len(data) > most:
        raise UnusableLine("too_large", f"{url}: expected at most {most:,} bytes of text")
    kind = _kind(record) or "document"
    head = record.http_headers or record.rec_headers
    given = str(head.get_header("Content-Type", "")).lower()
    charset = given.partition("charset=")[2].partition(";")[0].strip().strip("\"'")
    content = text_files.decoded(data, kind == "page", charset).replace("\0", "")
    if not content or content.isspace():
        return None
    title = text_files.html_title(content) if kind == "page" else ""
    source = source_of(kind, content)
    layout = Layout(url, source.id, url, title, (), ())
    fields = fields_of({"date": record.rec_headers.get_header(DATE)})
    return Row(where, document=Document(url, title, source.id, fields), layout=layout, sources=(source,))


def _body(record: Any, most: int) -> bytes:
    """Reads at most `most` bytes of a page, and undoes the codings that the header names, the last coding
    first. If a coding does not fit, the bytes stay as they are, since crawlers store decoded bodies with the
    original headers. Raises UnusableLine if such bytes have control characters."""
    from warcio.bufferedreaders import ChunkedDataReader  # imported here, since only crawls need it

    head, raw = record.http_headers, record.raw_stream
    if head is None:
        return bytes(raw.read(most))
    heads = (str(head.get_header(name, "")).lower() for name in ("Content-Encoding", "Transfer-Encoding"))
    codings = [coding.strip() for named in heads for coding in named.split(",")]
    if "chunked" in codings:
        raw = ChunkedDataReader(raw)
    data = bytes(raw.read(most))
    for coding in reversed([c for c in codings if c not in ("", "identity", "chunked")]):
        try:
            if coding in _CODECS:
                with pa.CompressedInputStream(pa.BufferReader(data), _CODECS[coding]) as stream:
                    data = stream.read(most)
                continue
            if coding not in ("gzip", "x-gzip", "deflate"):
                raise KeyError(coding)
            try:
                data = zlib.decompressobj(wbits=47).decompress(data, most)  # gzip or zlib, by its header
            except zlib.error:
                data = zlib.decompressobj(wbits=-15).decompress(data, most)  # raw deflate without a header
        except (KeyError, OSError, zlib.error) as e:
            if _CONTROL.search(data):
                raise UnusableLine("unsupported", f"expected a page, cannot unpack {coding!r} bytes") from e
    return data
