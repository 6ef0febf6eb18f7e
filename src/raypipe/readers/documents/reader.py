"""Reader of one file as a document: title, text, pages, sections, and faults of unreadable pages.

Each kind of file has a reader with an identity: if the identity changes, files of the kind are read again.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from raypipe.core.records import Fault, Mark
from raypipe.core.sandbox import Parts, Refused, Sandbox, SandboxLimits
from raypipe.readers.documents import ocr, page_text, text_files
from raypipe.readers.documents.walk import FileKind, file_kind
from raypipe.readers.fields import front_matter
from raypipe.readers.rows import DOCUMENT_LIMITS, DocumentLimits, UnusableLine

READER = "5"  # to be raised if this module, or a module used here, gives another text or field
RAISED = {"md": "8", "txt": "8"}  # version of single kinds: a change for texts makes no scan be read again
PAGES_AT_ONCE = 64  # pages requested from the child between two checks of the time limit
GARBLED = 0.05  # share of meaningless characters above which the text of a page is discarded
_MEANINGLESS = re.compile("[\ufffd\ue000-\uf8ff\0-\x08\x0e-\x1f]")
XFA_CHARS = 2_000  # most characters of the placeholder page of an XFA form; Adobe's has 700
_XFA = re.compile(
    r"not\s+eventually\s+replaced\s+by\s+the\s+proper\s+content|adobe\.com/go/(?:reader_down|acrreader)", re.I
)
_FILE_NAME = re.compile(
    r"\A(?:.*\.(?:docx?|pdf|tex|dvi|indd|pptx?|xlsx?|html?)|untitled.*|\(anonymous\)|microsoft word.*)", re.I
)
OPEN, IMAGES, PAGE, SCAN, DOCX, PROBE = b"O", b"I", b"P", b"S", b"D", b"?"  # as in `pdf`, not imported
UNREAD = "none"  # kind of a file that no reader takes
MARKED = (".pdf", ".docx")  # files with pages or sections that a row may name


@dataclass(frozen=True, slots=True)
class FileText:
    kind: FileKind
    title: str  # title in the file's metadata or text, not in its front matter; "" if there is none
    content: str  # content of the source: HTML if the kind is html, else text
    source_kind: Literal["page", "document"]
    pages: tuple[Mark, ...] = ()
    sections: tuple[Mark, ...] = ()
    faults: tuple[tuple[int, Fault], ...] = ()  # (page or csv line, from 1; why its text is missing)
    protected: bool = False  # whether an owner's password restricts its use; reading it is common practice
    repaired: int = 0  # number of pages whose columns were put in order
    fields: Mapping[str, str] = field(default_factory=dict)  # fields of its front matter
    skipped: tuple[str, ...] = ()  # names in its front matter whose values cannot be fields
    recognised: int = 0  # number of pages that text recognition read
    scans: bool = False  # whether some pages can only be read by text recognition


@cache
def reader_of(kind: str, scans: bool = False) -> str:
    """Returns the identity of the reader of a kind: the kind, our version, and programs that it uses.

    The identity for PDFs has PDFium's build, and if `scans`, also the program that recognises text. For an
    image and the kind UNREAD it always has both, because an unreadable file may be a scan.
    """
    if kind not in ("pdf", "image", UNREAD):
        return f"{kind}/{RAISED.get(kind, READER)}"
    from raypipe.readers.documents.pdf import PDFIUM  # imported here, since it loads PDFium's library

    return f"{kind}/{READER}/{PDFIUM}{f'/{ocr.engine()}' if scans or kind != 'pdf' else ''}"


def reads_as(reader: str) -> bool:
    """Returns whether a stored identity `reader` equals that of the current reader of the same kind."""
    kind, *parts = reader.split("/")
    return reader == reader_of(kind, len(parts) > 2)


class DocumentReader:
    """Reader of files, one at a time. Three child processes, for pages, scans and docx, start when needed."""

    def __init__(self, limits: DocumentLimits = DOCUMENT_LIMITS) -> None:
        child = "raypipe.readers.documents.pdf:answer"
        page = SandboxLimits(limits.page_wall_s, limits.page_cpu_s, limits.memory_bytes)
        whole = SandboxLimits(limits.whole_wall_s, limits.whole_cpu_s, limits.memory_bytes)
        scan = SandboxLimits(limits.ocr_wall_s, limits.ocr_cpu_s, limits.ocr_memory_bytes)
        self._limits = limits
        self._pages, self._whole = Sandbox(child, page, PROBE), Sandbox(child, whole, PROBE)
        self._scans = Sandbox(child, scan, PROBE)

    def read(self, name: str, data: bytes) -> FileText:
        """Reads the document in the bytes of a file. Raises UnusableLine if it gives no text (docs/files.md
        lists the reasons). Raises WorkerBroken if a child process fails even on a small correct PDF."""
        kind = file_kind(name, data)
        if kind == "image" and not (ocr.engine() and find_spec("PIL")):
            raise UnusableLine("no_text", ocr.no_text())
        if kind in ("pdf", "image"):
            return self._paged(kind, (OPEN if kind == "pdf" else IMAGES, data))
        if kind == "docx":
            found = _readable(self._whole.run([(DOCX, data)])[0])
            return _with_sections("docx", found["title"], found["sections"])
        if len(data) > (most := self._limits.text_bytes):
            raise UnusableLine("too_large", f"expected at most {most:,} bytes of text, found {len(data):,}")
        text, faults = text_files.decoded(data, kind == "html"), list[tuple[int, Fault]]()
        if not text.strip():
            raise UnusableLine("blank", "expected text, found none")
        if kind == "html":
            return FileText(kind, text_files.html_title(text), text, "page")
        if kind == "csv":
            text, faults = text_files.table(text)
            return replace(_with_sections(kind, "", [("", text)]), faults=tuple(faults))
        # All of a YAML file is text: in it, lines `---` separate documents.
        is_yaml = name.lower().endswith((".yaml", ".yml"))
        fields, skipped, text = ({}, (), text) if is_yaml else front_matter(text)
        title, sections = text_files.markdown(text) if kind == "md" else ("", [("", text)])
        return replace(_with_sections(kind, title, sections), fields=fields, skipped=skipped)

    def close(self) -> None:
        for child in (self._pages, self._whole, self._scans):
            child.close()

    def _paged(self, kind: FileKind, opening: Parts) -> FileText:
        about = _readable(self._pages.run([opening])[0])
        answers = self._page_answers(opening, about["pages"], time.monotonic() + self._limits.file_s)
        scans = [n for n, a in enumerate(answers) if a.get("scan")]
        self._recognise(opening, answers, scans if ocr.engine() else ())
        texts, faults = _page_texts(answers)
        if about["xfa"] or (len(texts) == 1 and len(texts[0]) < XFA_CHARS and _XFA.search(texts[0])):
            why = "a form of XFA, whose pages only Adobe's reader draws: print it to a PDF there"
            raise UnusableLine("unsupported", why)
        if not any(text.strip() for text in texts):
            if not faults:
                raise UnusableLine("blank", f"expected text, found {len(texts)} blank pages")
            [(reason, count)] = Counter(f.reason for _, f in faults).most_common(1)
            detail = next(f": {f.detail}" for _, f in faults if f.reason == reason)
            transient = any(f.transient for _, f in faults)
            raise UnusableLine(reason, f"{count} of {len(texts)} pages{detail}", transient)
        joined = page_text.joined(texts, [str(a.get("label") or i) for i, a in enumerate(answers, 1)])
        given = " ".join(page_text.storable(about["title"]).split())
        title = "" if _FILE_NAME.fullmatch(given) else given  # a file name is not used as title
        repaired = sum(bool(a.get("repaired")) for a in answers)
        sure = [a.get("confidence") if text else None for a, text in zip(answers, texts, strict=True)]
        marks = (
            m if c is None else replace(m, label=f"{m.label} (OCR {c:.2f})")
            for m, c in zip(joined.pages, sure, strict=True)
        )
        outline, recognised = _outline(joined, about["outline"]), len(sure) - sure.count(None)
        found = FileText(kind, title, joined.content, "document", tuple(marks), outline, tuple(faults))
        found = replace(found, protected=about["protected"], repaired=repaired)
        return replace(found, recognised=recognised, scans=bool(scans))

    def _recognise(self, opening: Parts, answers: list[dict[str, Any]], scans: Sequence[int]) -> None:
        """Replaces `answers` about `scans` (page numbers from 0) by recognised texts or faults. After too
        many faults, the next scans are given up."""
        lost = 0
        for n in scans:
            if lost > self._limits.lost_pages:
                answers[n] = {"fault": ["given_up", f"{lost} scans before it could not be read"]}
                continue
            [reply] = self._scans.run([(SCAN, n.to_bytes(4, "little"))], before=opening)
            lost += isinstance(reply, Refused)
            answers[n] = {"label": answers[n]["label"], **_answer(reply)}

    def _page_answers(self, opening: Parts, count: int, until: float) -> list[dict[str, Any]]:
        """Returns the text or fault of each of `count` pages. If a page ends the child process, only its text
        is lost. After the time `until` (monotonic clock), too many lost pages or too many characters, the
        next pages are given up."""
        answers, limits = list[dict[str, Any]](), self._limits
        lost, chars = 0, 0
        while len(answers) < count:
            why = None
            if time.monotonic() > until:
                why = ["timeout", f"expected at most {limits.file_s:g} s for the file, found more"]
            elif lost > limits.lost_pages:
                why = ["given_up", f"{lost} pages before it could not be read"]
            elif chars > (most := limits.file_chars):
                why = ["too_large", f"expected at most {most:,} characters in the file, found more"]
            if why is not None:
                return answers + [{"fault": why}] * (count - len(answers))
            wanted = range(len(answers), min(count, len(answers) + PAGES_AT_ONCE))
            requests = [(PAGE, i.to_bytes(4, "little")) for i in wanted]
            for reply in self._pages.run(requests, before=opening):
                lost += isinstance(reply, Refused) and reply.reason != "error"
                answers.append(_answer(reply))
                chars += len(answers[-1].get("text", ""))
        return answers


def _answer(reply: bytes | Refused) -> dict[str, Any]:
    """Parses a reply of a child process. The answer about an unreadable page or file has only a `fault`: the
    arguments of an UnusableLine."""
    if isinstance(reply, Refused):
        reason = "broken" if reply.reason == "error" else reply.reason
        return {"fault": [reason, reply.detail, reply.transient]}
    answer: dict[str, Any] = json.loads(reply)
    return answer


def _readable(reply: bytes | Refused) -> dict[str, Any]:
    if "fault" in (answer := _answer(reply)):
        raise UnusableLine(*answer["fault"])
    return answer


def _page_texts(answers: Sequence[dict[str, Any]]) -> tuple[list[str], list[tuple[int, Fault]]]:
    """Returns the text of each page, and (page from 1, fault) for each unreadable page, whose text is ""."""
    texts, faults = [], []
    for number, answer in enumerate(answers, 1):
        text = answer.get("text", "")
        fault = answer.get("fault")
        if answer.get("scan"):
            fault, text = ["no_text", ocr.no_text()], ""
        elif fault is None and (bad := len(_MEANINGLESS.findall(text))) > GARBLED * max(len(text), 1):
            why = f"{bad} of {len(text)} characters have no meaning: its fonts do not say which"
            fault, text = ["garbled", why], ""
        if fault is not None:
            faults.append((number, UnusableLine(*fault).fault))
        texts.append(text)
    return texts, faults


def _outline(joined: page_text.Joined, entries: Sequence[tuple[str, int]]) -> tuple[Mark, ...]:
    text, last = " ".join(joined.content.split()), 0
    starts: list[tuple[int, str]] = []
    for title, page in entries:
        name = " ".join(page_text.storable(title).split())
        if name and page < len(joined.pages):
            on = joined.pages[page]
            at = text.find(name, max(on.start, last), on.end)
            last = max(on.start if at < 0 else at, last)
            starts.append((last, name))
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return tuple(Mark(s, max(s, e), name) for (s, name), e in zip(starts, ends, strict=False))


def _with_sections(kind: FileKind, title: str, sections: Sequence[Sequence[str]]) -> FileText:
    texts = [page_text.storable(text) for _, text in sections]
    joined = page_text.with_marks(texts, [page_text.storable(heading) for heading, _ in sections])
    if not joined.content.strip():
        raise UnusableLine("blank", "expected text, found none")
    named = tuple(m for m in joined.pages if m.label)
    return FileText(kind, page_text.storable(title), joined.content, "document", (), named)


def read_by(file: Path) -> str | None:
    """Returns the identity of the reader for a file named as a PDF or docx; None for another name."""
    ending = file.suffix.lower()
    return reader_of(ending.removeprefix("."), scans=True) if ending in MARKED else None
