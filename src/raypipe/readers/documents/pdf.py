"""Code of the child process with limits (`core.sandbox`): reads docx files, images, and PDFs (by PDFium).

PDFium aborts if memory runs out, and is not thread-safe, so it runs in a child process, in one thread.
PDFium's character indices are inconsistent, so no code here relies on them. Hyphens, headers and spans need
the whole document; `page_text` handles them in the parent process.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from ctypes import c_float
from typing import TYPE_CHECKING, Any, cast

import pypdfium2 as pdfium
from pypdfium2 import raw

from raypipe.readers.documents import docx
from raypipe.readers.documents.page_layout import laid_out
from raypipe.readers.documents.page_tables import Box, Rule
from raypipe.readers.rows import DOCUMENT_LIMITS, UnusableLine

if TYPE_CHECKING:
    from raypipe.readers.documents.ocr import Images

PDFIUM = str(pdfium.PDFIUM_INFO)
"""Build of PDFium; another build can read another text from a page."""

FEW_LETTERS = 20  # a page with fewer letters may be a scan: scans have none, or 10 with a stamp
BOXES = 5_000  # most boxes of text on a page whose layout is examined; a paper's page has some 120
PICTURES = 200  # most pictures that are examined on a page
MOSTLY = 0.5  # least share of a scanned page that its pictures cover
OUTLINE = 2_000  # most entries of an outline
_PASSWORD = 4  # `err_code` of the error for a password; the text of the error may change
PATHS = 2_000  # most paths on a page that are searched for the lines of tables
SEGMENTS = 400  # most segments of a path that may frame cells; a curve of a chart has more
THIN = 3.0  # points, the greatest thickness of a ruled line
DENSEST = 200  # most dots per inch at which a page is drawn

OPEN, IMAGES, PAGE, SCAN, DOCX, PROBE = b"O", b"I", b"P", b"S", b"D", b"?"

_open: list[Pdf | Images] = []  # the opened file, or none


def answer(request: bytes) -> bytes:
    """Answers a request in the child, with JSON. A request is a command of one byte, then data. The last
    opened file stays open for later requests. PROBE tests the child by reading a generated PDF."""
    try:
        said = _answer(request[:1], request[1:])
    except UnusableLine as e:
        said = {"fault": [e.fault.reason, e.fault.detail]}
    return json.dumps(said).encode()


def _answer(what: bytes, data: bytes) -> dict[str, Any]:
    if what == PROBE:
        made = pdfium.PdfDocument.new()
        made.new_page(595, 842).close()
        document = Pdf(made)
        try:
            return document.page(0)
        finally:
            document.close()
    if what in (PAGE, SCAN):
        read = _open[0].scan if what == SCAN else _open[0].page
        return read(int.from_bytes(data, "little"))
    while _open:
        _open.pop().close()
    if what == DOCX:
        return docx.read(data)
    _open.append(_ocr().Images.opened(data) if what == IMAGES else opened(data))
    return _open[0].about()


def _ocr() -> Any:
    """Imports and returns the module for text recognition."""
    # The buffers of its threads take address space, and the child's address space is limited.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from raypipe.readers.documents import ocr  # it imports NumPy, which PDFs with text do not need

    return ocr


class Pdf:
    def __init__(self, document: pdfium.PdfDocument) -> None:
        self._document = document

    def about(self) -> dict[str, Any]:
        """Returns the number of pages, title, outline, and two flags. `protected` is True if an owner's
        password restricts the file. `xfa` is True for a form of XFA, whose pages are only placeholders."""
        return {
            "pages": len(self._document),
            "title": self._document.get_metadata_value("Title"),
            "outline": self._outline(),
            "xfa": self._document.get_formtype() == raw.FORMTYPE_XFA_FULL,
            "protected": raw.FPDF_GetSecurityHandlerRevision(self._document) != -1,
        }

    def _outline(self) -> list[tuple[str, int]]:
        try:
            entries = list(itertools.islice(self._document.get_toc(max_depth=4), OUTLINE))
            pages = ((e, e.get_dest() and e.get_dest().get_index()) for e in entries)
            return [(e.get_title(), page) for e, page in pages if page is not None and page >= 0]
        except pdfium.PdfiumError:
            return []  # a document can be read without its outline

    def page(self, index: int) -> dict[str, Any]:
        """Reads a page: its text (tables as rows, U+FFFE for a hyphen at a line's end), its printed label,
        and the flags `scan` (few letters, mostly pictures) and `repaired` (columns were put in order). Raises
        UnusableLine if PDFium cannot read the page or its text is too long."""
        try:
            page = self._document[index]
        except (pdfium.PdfiumError, IndexError) as e:
            raise UnusableLine("bad_page", f"expected a page that PDFium can load: {e}") from e
        try:
            text = page.get_textpage()
            try:
                if (count := text.count_chars()) > (most := DOCUMENT_LIMITS.page_chars):
                    raise UnusableLine("too_large", f"expected at most {most:,} characters, found {count:,}")
                found, repaired = text.get_text_range(), False
                if 4 <= (rects := text.count_rects()) <= BOXES:
                    boxes = [Box(*text.get_rect(i)) for i in range(rects)]
                    found, repaired = laid_out(
                        found, boxes, lambda i: text.get_text_bounded(*boxes[i]), _rules(page)
                    )
                few = sum(map(str.isalpha, found)) < FEW_LETTERS
                scan = few and _image_share(page) >= MOSTLY
                label = self._document.get_page_label(index)
                return {"text": found, "label": label, "scan": scan, "repaired": repaired}
            finally:
                text.close()
        except pdfium.PdfiumError as e:
            raise UnusableLine("bad_page", f"expected a page whose text PDFium can read: {e}") from e
        finally:
            page.close()

    def scan(self, index: int) -> dict[str, Any]:
        """Draws a page and recognises its text (see `ocr.read`). Raises UnusableLine if it cannot draw."""
        ocr, page = _ocr(), self._document[index]
        try:
            bitmap = page.render(scale=min(ocr.scale(*page.get_size()), DENSEST / 72))
            return cast(dict[str, Any], ocr.read(bitmap.to_numpy()[:, :, :3].copy()))
        except pdfium.PdfiumError as e:
            raise UnusableLine("bad_page", f"expected a page that PDFium can draw: {e}") from e
        finally:
            page.close()

    def close(self) -> None:
        self._document.close()


def opened(data: bytes) -> Pdf:
    """Opens a PDF. Raises UnusableLine with the reason encrypted, broken or too_large."""
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as e:
        if getattr(e, "err_code", None) == _PASSWORD:
            raise UnusableLine("encrypted", "a password protects this PDF: save it without one") from e
        raise UnusableLine("broken", f"expected a whole PDF, PDFium cannot open it: {e}") from e
    pages, most = len(document), DOCUMENT_LIMITS.pages
    if 0 < pages <= most:
        return Pdf(document)
    document.close()
    if pages:
        raise UnusableLine("too_large", f"expected at most {most:,} pages, found {pages:,}")
    raise UnusableLine("broken", "expected pages, found none")


def _rules(page: pdfium.PdfPage) -> tuple[list[Rule], list[Rule]]:
    """Returns the horizontal and the vertical lines among the first PATHS paths that a page draws."""
    across, down = list[Rule](), list[Rule]()
    for path in itertools.islice(page.get_objects(filter=[raw.FPDF_PAGEOBJ_PATH], max_depth=1), PATHS):
        left, bottom, right, top = path.get_bounds()
        if min(right - left, top - bottom) > THIN and raw.FPDFPath_CountSegments(path) <= SEGMENTS:
            edges = list(_edges(path))
        else:
            edges = [(left, bottom, right, top)]
        for x, y, x2, y2 in edges:
            if abs(y2 - y) <= THIN < abs(x2 - x):
                across.append(Rule((y + y2) / 2, min(x, x2), max(x, x2)))
            elif abs(x2 - x) <= THIN < abs(y2 - y):
                down.append(Rule((x + x2) / 2, min(y, y2), max(y, y2)))
    return across, down


def _edges(path: pdfium.PdfObject) -> Iterator[tuple[float, float, float, float]]:
    """Yields the straight segments of a path as (x, y, x2, y2) on the page."""
    matrix, x, y = path.get_matrix(), c_float(), c_float()
    first = last = (0.0, 0.0)
    for i in range(raw.FPDFPath_CountSegments(path)):
        segment = raw.FPDFPath_GetPathSegment(path, i)
        raw.FPDFPathSegment_GetPoint(segment, x, y)
        point, kind = matrix.on_point(x.value, y.value), raw.FPDFPathSegment_GetType(segment)
        if kind == raw.FPDF_SEGMENT_MOVETO:
            first = point
        elif kind == raw.FPDF_SEGMENT_LINETO:
            yield *last, *point
        if raw.FPDFPathSegment_GetClose(segment):
            yield *point, *first
        last = point


def _image_share(page: pdfium.PdfPage) -> float:
    """Returns the approximate share of a page that its images cover, 0..1; overlaps count twice."""
    width, height = page.get_size()
    area = 0.0
    images = page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=3)
    for image in itertools.islice(images, PICTURES):
        left, bottom, right, top = image.get_bounds()
        area += max(0.0, right - left) * max(0.0, top - bottom)
    return float(min(1.0, area / max(width * height, 1.0)))
