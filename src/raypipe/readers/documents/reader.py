"""A file read as a document: title, text, pages, sections, and the pages that were lost.

A reader has an identity: what it read is read again when that changes.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from raypipe.core.records import Fault, Mark
from raypipe.core.sandbox import Parts, Refused, Sandbox, SandboxLimits
from raypipe.readers.documents import page_text, plain
from raypipe.readers.documents.sniff import FileKind, file_kind
from raypipe.readers.rows import DOCUMENT_LIMITS, STEP, DocumentLimits, UnusableLine

READER = "4"  # raised when the rules here, or of `page_text`, `plain` and `docx`, make another text
PAGES_AT_ONCE = 64  # asked of the child before the time is looked at
GARBLED = 0.05  # share of characters without a meaning above which a page cannot be searched
_MEANINGLESS = re.compile("[\ufffd\ue000-\uf8ff\0-\x08\x0e-\x1f]")
XFA_CHARS = 2_000  # of the page that a form of XFA shows where it is not drawn; Adobe's has 700
_XFA = re.compile(
    r"not\s+eventually\s+replaced\s+by\s+the\s+proper\s+content|adobe\.com/go/(?:reader_down|acrreader)",
    re.I,
)
_FILE_NAME = re.compile(
    r"\A(?:.*\.(?:docx?|pdf|tex|dvi|indd|pptx?|xlsx?|html?)|untitled.*|\(anonymous\)|microsoft word.*)", re.I
)
OPEN, PAGE, DOCX, PROBE = b"O", b"P", b"D", b"?"  # of `pdf`, which is not imported here


@dataclass(frozen=True, slots=True)
class FileText:
    kind: FileKind
    title: str  # as the file gives it; "" where it gives none
    content: str  # of a source; HTML where the kind is html
    source_kind: Literal["page", "document"]
    pages: tuple[Mark, ...] = ()
    sections: tuple[Mark, ...] = ()
    faults: tuple[tuple[int, Fault], ...] = ()  # page, of a csv line, from 1, and why it has no text
    protected: bool = False  # an owner's password restricts its use; reading it is common practice
    repaired: int = 0  # pages whose order was put right


@cache
def reader_of(kind: str) -> str:
    """Names what reads files of a kind: the rules here, and for a PDF, or a file that could not be read, the
    build of its library."""
    if kind in ("pdf", "none"):
        from raypipe.readers.documents.pdf import PDFIUM

        return f"{kind}/{READER}/{PDFIUM}"
    return f"{kind}/{READER}"


class DocumentReader:
    """Reads files one by one. It has child processes for PDF and docx, which start with the first of each."""

    def __init__(self, limits: DocumentLimits = DOCUMENT_LIMITS) -> None:
        child = "raypipe.readers.documents.pdf:answer"
        page = SandboxLimits(limits.page_wall_s, limits.page_cpu_s, limits.memory_bytes)
        whole = SandboxLimits(limits.whole_wall_s, limits.whole_cpu_s, limits.memory_bytes)
        self._limits = limits
        self._pages, self._whole = Sandbox(child, page, PROBE), Sandbox(child, whole, PROBE)

    def read(self, name: str, data: bytes) -> FileText:
        """The document in the bytes of a file. Raises UnusableLine (docs/files.md has the reasons), and
        WorkerBroken where this machine cannot read any PDF or docx now."""
        kind = file_kind(name, data)
        if kind == "pdf":
            return self._pdf(data)
        if kind == "docx":
            found = _reply(self._whole.run([(DOCX, data)])[0])
            return _with_sections("docx", found["title"], found["sections"])
        if len(data) > (most := self._limits.text_bytes):
            raise UnusableLine("too_large", f"expected at most {most:,} bytes of text, found {len(data):,}")
        return _text_file(kind, data)

    def close(self) -> None:
        self._pages.close()
        self._whole.close()

    def _pdf(self, data: bytes) -> FileText:
        until = time.monotonic() + self._limits.file_s
        opening = OPEN, data
        about = _reply(self._pages.run([opening])[0])
        answers = self._pdf_pages(opening, about["pages"], until)
        texts, faults = _page_texts(answers)
        if about["xfa"] or (len(texts) == 1 and len(texts[0]) < XFA_CHARS and _XFA.search(texts[0])):
            why = "a form of XFA, whose pages only Adobe's reader draws: print it to a PDF there"
            raise UnusableLine("unsupported", why)
        if not any(text.strip() for text in texts):
            raise _textless(len(texts), [fault for _, fault in faults])
        joined = page_text.joined(texts, [str(a.get("label") or i) for i, a in enumerate(answers, 1)])
        given = " ".join(page_text.storable(about["title"]).split())
        title = "" if _FILE_NAME.fullmatch(given) else given  # the name of a file is no title
        repaired = sum(bool(a.get("repaired")) for a in answers)
        return FileText(
            "pdf", title, joined.content, "document", joined.pages, _outline(joined, about["outline"]),
            tuple(faults), about["protected"], repaired,
        )  # fmt: skip

    def _pdf_pages(self, opening: Parts, count: int, until: float) -> list[dict[str, Any]]:
        """The reply about each page. A page that ends the child costs itself."""
        answers: list[dict[str, Any]] = []
        lost, chars = 0, 0
        while len(answers) < count:
            if (why := self._exhausted(until, lost, chars)) is not None:
                return answers + [{"fault": why}] * (count - len(answers))
            wanted = range(len(answers), min(count, len(answers) + PAGES_AT_ONCE))
            requests = [(PAGE, i.to_bytes(4, "little")) for i in wanted]
            for reply in self._pages.run(requests, before=opening):
                if isinstance(reply, Refused):
                    lost += reply.reason in ("timeout", "memory", "crash")
                    answers.append({"fault": [reply.reason, reply.detail], "transient": reply.transient})
                else:
                    answer = json.loads(reply)
                    chars += len(answer.get("text", ""))
                    answers.append(answer)
        return answers

    def _exhausted(self, until: float, lost: int, chars: int) -> list[str] | None:
        limits = self._limits
        if time.monotonic() > until:
            return ["timeout", f"expected at most {limits.file_s:g} s for the file, found more"]
        if lost > limits.lost_pages:
            return ["given_up", f"{lost} pages before it could not be read"]
        if chars > limits.file_chars:
            return ["too_large", f"expected at most {limits.file_chars:,} characters in the file, found more"]
        return None


def _reply(answer: bytes | Refused) -> dict[str, Any]:
    if isinstance(answer, Refused):
        error = UnusableLine("broken" if answer.reason == "error" else answer.reason, answer.detail)
        error.fault = replace(error.fault, transient=answer.transient)
        raise error
    found: dict[str, Any] = json.loads(answer)
    if "fault" in found:
        raise UnusableLine(*found["fault"])
    return found


def _page_texts(answers: Sequence[dict[str, Any]]) -> tuple[list[str], list[tuple[int, Fault]]]:
    """The text of each page, "" where there is none, and a fault for each page that has lost it."""
    texts, faults = [], []
    for number, answer in enumerate(answers, 1):
        text = answer.get("text", "")
        fault = answer.get("fault")
        if fault is None and answer["letters"] < 20 and answer["images"] >= 0.5:
            fault, text = ["no_text", "the page is an image: a scan without a text layer"], ""
        elif fault is None and (bad := len(_MEANINGLESS.findall(text))) > GARBLED * max(len(text), 1):
            why = f"{bad} of {len(text)} characters have no meaning: its fonts do not say which"
            fault, text = ["garbled", why], ""
        if fault is not None:
            reason = "broken" if fault[0] == "error" else fault[0]
            faults.append((number, Fault(STEP, reason, fault[1], bool(answer.get("transient")))))
        texts.append(text)
    return texts, faults


def _textless(pages: int, faults: Sequence[Fault]) -> UnusableLine:
    """A PDF none of whose pages has text, with the reason of most of them."""
    if not faults:
        return UnusableLine("blank", f"expected text, found {pages} blank pages")
    [(reason, count)] = Counter(f.reason for f in faults).most_common(1)
    detail = next(f": {f.detail}" for f in faults if f.reason == reason)
    if reason == "no_text":
        detail = " are images: a scan. Run it through a program for text recognition"
    return UnusableLine(reason, f"{count} of {pages} pages{detail}")


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


def _text_file(kind: FileKind, data: bytes) -> FileText:
    text = plain.decoded(data, kind == "html")
    if not text.strip():
        raise UnusableLine("blank", "expected text, found none")
    if kind == "html":
        return FileText(kind, plain.html_title(text), text, "page")
    if kind == "md":
        return _with_sections(kind, *plain.markdown(text))
    faults = list[tuple[int, Fault]]()
    if kind == "csv":
        text, faults = plain.table(text)
    return replace(_with_sections(kind, "", [("", text)]), faults=tuple(faults))
