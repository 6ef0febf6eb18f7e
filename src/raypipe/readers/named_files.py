"""Files that rows name as documents: next to the data, each read by its ending.

Pages and texts are read as they are. A PDF or docx is read as in a folder of documents (`documents.reader`),
in a limited child process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from raypipe.readers.documents import DOCUMENT_LIMITS, DocumentReader, FileText, reader_of
from raypipe.readers.rows import LIMITS, UnusableLine

PAGES, TEXTS, MARKED = (".html", ".htm", ".xhtml"), (".txt", ".md", ".markdown"), (".pdf", ".docx")


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files below a folder that rows may name, and what reads PDF and docx among them."""

    folder: Path
    documents: DocumentReader

    def read(self, named: str, where: str) -> FileText:
        """The text of a file. Raises UnusableLine for one that is not there or cannot be read; `where`: in
        the row."""
        file = inside(self.folder, named)
        if isinstance(file, str):
            raise UnusableLine("no_file", f"{where}: {file}")
        ending = file.suffix.lower()
        if ending not in (*PAGES, *TEXTS, *MARKED):
            expected = ", ".join((*PAGES, *TEXTS, *MARKED))
            raise UnusableLine("file_kind", f"{where}: expected {expected}, found {named!r}")
        most = DOCUMENT_LIMITS.file_bytes if ending in MARKED else LIMITS.line_bytes
        if (size := file.stat().st_size) > most:
            raise UnusableLine(
                "too_long", f"{where}: expected at most {most:,} bytes in {named!r}, found {size:,}"
            )
        try:
            data = file.read_bytes()
        except OSError as e:
            raise UnusableLine("no_file", f"{where}: {named!r} cannot be read: {e.strerror}") from e
        if ending in MARKED:
            return self._marked(named, where, data)
        return _plain(named, where, ending, data)

    def _marked(self, named: str, where: str, data: bytes) -> FileText:
        try:
            found = self.documents.read(named, data)
        except UnusableLine as e:
            e.fault = replace(e.fault, detail=f"{where}: {named!r}: {e.fault.detail}")
            raise
        lost = [(n, replace(f, detail=f"{where}: {named!r}, page {n}: {f.detail}")) for n, f in found.faults]
        return replace(found, title=found.title or PurePath(named).stem, faults=tuple(lost))


def inside(folder: Path, named: str) -> Path | str:
    root = folder.resolve()
    try:
        file = (root / named).resolve()
        if not file.is_relative_to(root):
            return f"expected a path inside {folder}, found {named[:200]!r}"
        if not file.is_file():
            return f"no file {named[:200]!r} in {folder}; a text of its own stands in an object, as text"
    except (OSError, ValueError) as e:
        return f"{named[:200]!r} cannot be a path: {e}"
    return file


def read_by(file: Path) -> str | None:
    """Names what reads a PDF or docx; None for other files, whose text is their bytes."""
    ending = file.suffix.lower()
    return reader_of(ending.removeprefix(".")) if ending in MARKED else None


def _plain(named: str, where: str, ending: str, data: bytes) -> FileText:
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        if ending in TEXTS:
            raise UnusableLine("not_utf8", f"{where}: {named!r}: byte {e.start}; expected UTF-8") from e
        content = e.object.decode("utf-8", "replace")  # as `raypipe parse` reads a page
    content = content.replace("\0", "")
    return (
        FileText("html", "", content, "page") if ending in PAGES else FileText("txt", "", content, "document")
    )
