"""Walk of a folder: finds its files, opens them safely and detects their kinds.

The `stat` of a file is checked before the file is opened: opening a pipe blocks, and a sparse file of two
gigabytes costs as much as a full one. Links to places inside the folder are followed, and each file is read
once. The content decides the kind; the name only distinguishes kinds of text. The table of magic numbers is
our own: the libraries for it take a truncated docx or a bare zip for a docx. They also miss HTML, and PDFs
with a line before the header.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

from raypipe.core.errors import DataError
from raypipe.readers.rows import DOCUMENT_LIMITS, DocumentLimits, UnusableLine

LEVELS = 100  # most levels of nested folders
RECORDS = ("run.json", "sweep.json", "repeats.json")  # mark folders of evals: reports are no documents
_RECORD = re.compile(rb'\A\s*+\{\s*+"format": *+\d')


@dataclass(frozen=True, slots=True)
class FoundFile:
    """File that a walk found and did not open, or an entry that cannot be read, with the reason."""

    name: str  # path relative to the folder, with /; bytes that are no UTF-8 are surrogates, as in Python
    path: str  # absolute path under which the file is opened, with links resolved
    size: int  # bytes; like the next three, 0 if the entry cannot be examined
    mtime_ns: int
    inode: int
    device: int
    trouble: UnusableLine | None = None  # why the entry cannot be read

    @property
    def state(self) -> tuple[int, int, int]:
        """Size, modification time and inode. A file with an equal state counts as unchanged."""
        return self.size, self.mtime_ns, self.inode

    @property
    def url(self) -> str:
        """Relative URL of the name, made from its bytes, so that names in Latin-1 work, too."""
        return quote(os.fsencode(self.name))

    @property
    def shown(self) -> str:
        """The name as text that can be stored."""
        return os.fsencode(self.name).decode(errors="replace")


def walk(root: Path, globs: Sequence[str], limits: DocumentLimits) -> Iterator[FoundFile]:
    """Yields the entries below a folder `root` whose paths match `globs` (see `wanted`), in name order. If
    `root` is a file, yields only this file and ignores `globs`. An entry that cannot be read has a `trouble`.
    Skips hidden names (`.x`) and further links to a file. Raises DataError if `root` is missing."""
    if not root.exists():
        raise DataError(f"{root}: no such file or folder. Check the path")
    if not root.is_dir():
        yield _found(str(root.parent.resolve() / root.name), root.name, root, limits)
        return
    real = root.resolve()
    seen: set[tuple[int, int]] = set()
    is_wanted = wanted(globs)
    for path, name in _entries(str(real), "", real, {_identity(real)}):
        if not is_wanted(name):
            continue
        found = _found(path, name, real, limits)
        if found.trouble is None:
            if (found.device, found.inode) in seen:
                continue  # a second link to the same file
            seen.add((found.device, found.inode))
        yield found


def wanted(globs: Sequence[str]) -> Callable[[str], bool]:
    """Returns a function that tells whether the patterns `globs` match a relative path. `*` matches any text,
    also `/`. No pattern after a `!` may match, and one of the other patterns must, if there are any.

    >>> [wanted(globs)("a/b.pdf") for globs in (["*.pdf"], ["*.pdf", "!a/*"], [])]
    [True, False, True]
    """

    def pattern(globs: list[str]) -> re.Pattern[str]:
        every = (fnmatch.translate(g) for glob in globs for g in (glob, glob.removeprefix("**/")))
        return re.compile("|".join(every) or "(?!)")

    takes = pattern([g for g in globs if not g.startswith("!")] or ["*"])
    leaves = pattern([g[1:] for g in globs if g.startswith("!")])
    return lambda name: bool(takes.match(name)) and not leaves.match(name)


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _entries(folder: str, name: str, real: Path, above: set[tuple[int, int]]) -> Iterator[tuple[str, str]]:
    """Yields (path, relative path) of all visible entries below a folder, in name order. Enters a subfolder
    instead of yielding it. But it yields a subfolder that holds a run, cannot be listed, is too deep, or is a
    link that leaves `real` or forms a loop. In a yielded path only the last part may be a link."""
    try:
        entries = None if _holds_run(folder) else sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError:
        entries = None
    if entries is None:
        yield folder, name or "."  # `_found` reports the fault
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path, inner, identity = entry.path, f"{name}/{entry.name}" if name else entry.name, None
        with suppress(OSError, RuntimeError):  # raised for a link to itself
            if entry.is_dir() and (place := Path(path).resolve()).is_relative_to(real):
                identity = _identity(place)
        if identity is None or identity in above or len(above) > LEVELS:
            yield path, inner
        else:
            yield from _entries(str(place), inner, real, above | {identity})


def _holds_run(folder: str) -> bool:
    files = (os.path.join(folder, name) for name in RECORDS)
    for file in filter(os.path.isfile, files):
        with suppress(OSError), open(file, "rb") as stream:
            if _RECORD.match(stream.read(100)):
                return True
    return False


def _found(path: str, name: str, root: Path, limits: DocumentLimits) -> FoundFile:
    def bad(reason: str, detail: str) -> FoundFile:
        return FoundFile(name, path, 0, 0, 0, 0, UnusableLine(reason, detail))

    try:
        seen = os.lstat(path)
        if linked := stat.S_ISLNK(seen.st_mode):
            seen = os.stat(path)
    except (OSError, RuntimeError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        if isinstance(e, FileNotFoundError):
            why = "a link to a missing file" if os.path.islink(path) else "deleted while the folder was read"
        elif isinstance(e, PermissionError):
            why = "permission denied"
        return bad("loop" if "symbolic link" in why.lower() else "unreadable", why)
    place = str(Path(path).resolve()) if linked else path  # making a Path takes as long as all else here
    if linked and root.is_dir() and not Path(place).is_relative_to(root):
        return bad("outside", "a link that leaves the folder is not followed")
    if stat.S_ISDIR(seen.st_mode):
        if _holds_run(path):
            return bad("run", "a folder with the report of an eval is no document")
        if linked:
            return bad("loop", "a link to a folder that contains it")
        try:
            os.scandir(path).close()
        except OSError as e:
            why = (e.strerror or str(e)).lower()
            return bad("unreadable", f"expected a folder that can be listed: {why}")
        return bad("loop", f"expected at most {LEVELS} nested folders")
    if not stat.S_ISREG(seen.st_mode):
        pipe, socket = stat.S_ISFIFO(seen.st_mode), stat.S_ISSOCK(seen.st_mode)
        found = "a named pipe" if pipe else "a socket" if socket else "a device"
        return bad("not_a_file", f"expected a file, found {found}")
    size = f"expected at most {limits.file_bytes:,} bytes, found {seen.st_size:,}"
    trouble = UnusableLine("too_large", size) if seen.st_size > limits.file_bytes else None
    return FoundFile(name, place, seen.st_size, seen.st_mtime_ns, seen.st_ino, seen.st_dev, trouble)


def fresh_bytes(file: FoundFile) -> bytes:
    """Reads a file that `walk` found; opens it without blocking and without following links. Raises
    UnusableLine if the file cannot be read, or has another size or inode than `walk` found."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(file.path, flags)
        with os.fdopen(handle, "rb") as stream:
            seen = os.fstat(stream.fileno())
            if not stat.S_ISREG(seen.st_mode) or (seen.st_size, seen.st_ino) != (file.size, file.inode):
                raise UnusableLine("changed", "the file changed while the folder was read: ingest again")
            return stream.read(file.size + 1)[: file.size]
    except OSError as e:
        raise UnusableLine("unreadable", f"expected a file that can be read: {e.strerror}") from e


def content_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


FileKind: TypeAlias = Literal["txt", "md", "html", "csv", "pdf", "docx", "image"]

HEAD_BYTES = 4096  # first bytes of a file that are compared with magic numbers
_PDF_WITHIN = 1024  # first bytes of a file, in which %PDF- must occur
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body|meta|title)\b", re.I)
_XML = re.compile(rb"<\?xml\b", re.I)
_IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*")  # PNG, JPEG, TIFF
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OTHER: dict[bytes, str] = {
    b"GIF8": "a GIF image",
    b"{\\rtf": "an RTF file",
    b"%!PS": "a PostScript file",
    b"\x1f\x8b": "a gzip file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"7z\xbc\xaf": "a 7z archive",
    b"(\xb5/\xfd": "a zstd file",
    b"\x7fELF": "a program",
    b"MZ": "a program",
    b"SQLite format 3": "an SQLite database",
    b"PAR1": "a parquet file",
    b"ID3": "a sound file",
    b"OggS": "a sound file",
    b"RIFF": "a sound, image or film file",
}
_MAIN_TYPE = re.compile(  # content type of a package's main part, under any name
    rb"(wordprocessingml|ms-word|presentationml|ms-powerpoint|spreadsheetml|ms-excel)"
    rb"[\w.-]{0,40}\.main\+xml",  # the longest, of a binary sheet with macros, has 26 characters here
    re.I,
)
_OFFICE = {b"": "a zip file"}
_OFFICE |= dict.fromkeys((b"presentationml", b"ms-powerpoint"), "a pptx file")
_OFFICE |= dict.fromkeys((b"spreadsheetml", b"ms-excel"), "an xlsx file")
_TYPES, TYPES_BYTES = "[content_types].xml", 1 << 20
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SUFFIXES: dict[FileKind, tuple[str, ...]] = {
    "md": (".md", ".markdown"),
    "csv": (".csv", ".tsv"),
    "html": (".html", ".htm", ".xhtml"),
}
_CLAIMS = {".pdf": "a PDF", ".docx": "a docx"}  # ending of a name -> kind that the content must have
_READ = "expected txt, md, html, csv, pdf, docx, png, jpg or tiff"


def file_kind(name: str, data: bytes) -> FileKind:
    """Detects the kind of a file from its content and its name. Raises UnusableLine with the reason
    unsupported, encrypted, broken, empty, too_large or kind_mismatch."""
    base = name.rpartition("/")[2].lower()
    suffix = base[base.rindex(".") :] if "." in base[1:] else ""
    if not data.strip(b"\0 \t\r\n"):
        found = f"{len(data)} bytes of white space or NUL" if data else "an empty file"
        raise UnusableLine("empty", f"expected text, found {found}")
    kind = _by_content(data[:HEAD_BYTES], data, suffix)
    if suffix in _CLAIMS and kind in ("html", "txt", "md", "csv"):
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
    if head.startswith(_IMAGES):
        return "image"
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
    shown = text
    while shown.startswith(b"<!--") and (end := shown.find(b"-->", 4)) >= 0:
        shown = shown[end + 3 :].lstrip()
    if _HTML.match(shown) or (_XML.match(text) and b"<html" in text.lower()):
        return "html"
    if _XML.match(text) and suffix == ".svg":
        raise UnusableLine("unsupported", f"{_READ}, found an SVG image")
    return next((kind for kind, suffixes in _SUFFIXES.items() if suffix in suffixes), "txt")


def _zip_kind(data: bytes) -> FileKind:
    if (members := data.count(b"PK\x01\x02")) > (most := DOCUMENT_LIMITS.zip_members):
        raise UnusableLine("too_large", f"expected at most {most:,} parts, {members:,}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = {name.lower(): name for name in archive.namelist()}
            types = b""
            if _TYPES in names:
                with suppress(RuntimeError), archive.open(names[_TYPES]) as stream:  # raised for a password
                    types = stream.read(TYPES_BYTES)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, zlib.error) as e:
        raise UnusableLine("broken", f"expected a docx, found a zip file that cannot be opened: {e}") from e
    main = _MAIN_TYPE.search(types)
    kind = main[1].lower() if main else b""
    if kind in (b"wordprocessingml", b"ms-word") or (not kind and "word/document.xml" in names):
        return "docx"
    what = "an epub or OpenDocument file" if "mimetype" in names else _OFFICE[kind]
    raise UnusableLine("unsupported", f"{_READ}, found {what}")
