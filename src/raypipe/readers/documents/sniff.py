"""Type of a file, by its first bytes; its name only tells kinds of text apart.

A table of magics of our own: the libraries for it call a truncated docx a docx, a bare zip a docx, and miss
HTML and a PDF with a line before its head. Knows bytes and names, opens nothing.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from contextlib import suppress
from typing import Literal, TypeAlias

from raypipe.readers.rows import DOCUMENT_LIMITS, UnusableLine

FileKind: TypeAlias = Literal["txt", "md", "html", "csv", "pdf", "docx"]

HEAD_BYTES = 4096
_PDF_WITHIN = 1024  # bytes that may stand before %PDF-
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body|meta|title)\b", re.I)
_XML = re.compile(rb"<\?xml\b", re.I)
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OTHER: dict[bytes, str] = {
    b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image", b"GIF8": "a GIF image",
    b"II*\0": "a TIFF image", b"MM\0*": "a TIFF image", b"{\\rtf": "an RTF file",
    b"%!PS": "a PostScript file", b"\x1f\x8b": "a gzip file", b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file", b"7z\xbc\xaf": "a 7z archive", b"(\xb5/\xfd": "a zstd file",
    b"\x7fELF": "a program", b"MZ": "a program", b"SQLite format 3": "an SQLite database",
    b"PAR1": "a parquet file", b"ID3": "a sound file", b"OggS": "a sound file",
    b"RIFF": "a sound, image or film file",
}  # fmt: skip
_MAIN_TYPE = re.compile(  # of the main part of a package, whatever its name
    rb"(wordprocessingml|ms-word|presentationml|ms-powerpoint|spreadsheetml|ms-excel)"
    rb"[\w.-]{0,40}\.main\+xml",  # the longest, that of a binary sheet with macros, has 26
    re.I,
)
_OFFICE = {
    b"presentationml": "a pptx file", b"ms-powerpoint": "a pptx file", b"spreadsheetml": "an xlsx file",
    b"ms-excel": "an xlsx file", b"": "a zip file",
}  # fmt: skip
_TYPES, TYPES_BYTES = "[content_types].xml", 1 << 20
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_BY_SUFFIX: dict[str, FileKind] = {
    ".md": "md", ".markdown": "md", ".csv": "csv", ".tsv": "csv", ".html": "html", ".htm": "html",
    ".xhtml": "html",
}  # fmt: skip
_CLAIMS = {".pdf": "a PDF", ".docx": "a docx", ".html": "HTML", ".htm": "HTML"}
_READ = "expected txt, md, html, csv, pdf or docx"


def file_kind(name: str, data: bytes) -> FileKind:
    """Returns what a file of this name and content is read as.

    Raises UnusableLine: unsupported, encrypted, broken, empty, kind_mismatch.
    """
    base = name.rpartition("/")[2].lower()
    suffix = base[base.rindex(".") :] if "." in base[1:] else ""
    head = data[:HEAD_BYTES]
    if not data.strip(b"\0 \t\r\n"):
        found = f"{len(data)} bytes of white space or NUL" if data else "an empty file"
        raise UnusableLine("empty", f"expected text, found {found}")
    kind = _by_content(head, data, suffix)
    if suffix in (".pdf", ".docx") and kind in ("html", "txt", "md", "csv"):
        found = "an HTML page, such as a login page" if kind == "html" else "text"
        raise UnusableLine("kind_mismatch", f"expected {_CLAIMS[suffix]} by its name, found {found}")
    return kind


def _by_content(head: bytes, data: bytes, suffix: str) -> FileKind:
    if b"%PDF-" in head[:_PDF_WITHIN]:
        return "pdf"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_kind(data)
    if head.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            raise UnusableLine("encrypted", "a password protects this Office file: save it without one")
        raise UnusableLine("unsupported", f"{_READ}, found an old Office file (.doc, .xls, .ppt)")
    for magic, what in _OTHER.items():
        if head.startswith(magic):
            raise UnusableLine("unsupported", f"{_READ}, found {what}")
    if not head.startswith(_BOMS[1:]):  # UTF-16 has NUL bytes
        if b"\0" in head:
            raise UnusableLine("unsupported", f"{_READ}, found a file with NUL bytes")
        strange = sum(byte < 9 or 13 < byte < 27 for byte in head)
        if strange > max(8, len(head) // 20):
            raise UnusableLine("unsupported", f"{_READ}, found {strange} control characters at its start")
    text = head.removeprefix(_BOMS[0]).lstrip()
    if _HTML.match(_without_comments(text)) or (_XML.match(text) and b"<html" in text.lower()):
        return "html"
    if _XML.match(text) and suffix == ".svg":
        raise UnusableLine("unsupported", f"{_READ}, found an SVG image")
    return _BY_SUFFIX.get(suffix, "txt")


def _without_comments(html: bytes) -> bytes:
    """Returns what stands behind the comments that a page begins with."""
    while html.startswith(b"<!--") and (end := html.find(b"-->", 4)) >= 0:
        html = html[end + 3 :].lstrip()
    return html


def _zip_kind(data: bytes) -> FileKind:
    if (members := data.count(b"PK\x01\x02")) > (most := DOCUMENT_LIMITS.zip_members):
        raise UnusableLine("too_large", f"expected at most {most:,} parts, {members:,}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = {name.lower(): name for name in archive.namelist()}
            types = b""
            if _TYPES in names:
                with suppress(RuntimeError), archive.open(names[_TYPES]) as stream:  # of a password
                    types = stream.read(TYPES_BYTES)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, zlib.error) as e:
        raise UnusableLine("broken", f"expected a docx, found a zip file that cannot be opened: {e}") from e
    main = _MAIN_TYPE.search(types)
    kind = main[1].lower() if main else b""
    if kind in (b"wordprocessingml", b"ms-word") or (not kind and "word/document.xml" in names):
        return "docx"
    what = "an epub or OpenDocument file" if "mimetype" in names else _OFFICE[kind]
    raise UnusableLine("unsupported", f"{_READ}, found {what}")
