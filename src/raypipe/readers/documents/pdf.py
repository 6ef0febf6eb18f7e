"""Work of the limited child (`core.sandbox`): a PDF through PDFium, page by page, images, and a docx.

PDFium aborts where memory ends, is not safe for threads, and its character indices disagree with themselves:
so it lives in a child, alone, and nothing here counts on an index of it. What the document as a whole needs
(hyphens, headers, spans) is done by `page_text` in the parent.
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
"""The build: the text of a page can differ between two."""

FEW_LETTERS = 20  # a page with fewer is looked at for pictures: a scan has none, with a stamp 10
BOXES = 5_000  # of text on a page; a page of a paper has some 120
PICTURES = 200  # looked at on a page
MOSTLY = 0.5  # share of a scan that its pictures cover
OUTLINE = 2_000  # entries
_PASSWORD = 4  # what `err_code` of an error says then; its text may change
PATHS = 2_000  # looked at on a page for the lines of tables
SEGMENTS = 400  # of a path; a curve of a chart has more
THIN = 3.0  # points that a line is thick
DENSEST = 200  # dots per inch of a page that is drawn

OPEN, IMAGES, PAGE, SCAN, DOCX, PROBE = b"O", b"I", b"P", b"S", b"D", b"?"

_open: list[Pdf | Images] = []  # at most one


def answer(request: bytes) -> bytes:
    """The reply to a request, as JSON. A request is one byte, which says what to do, and its data.

    The child keeps the file that it opened last. PROBE asks whether it is well: a PDF of one page."""
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
    found: Pdf | Images | dict[str, Any] = _ocr().Images.opened(data) if what == IMAGES else opened(data)
    if isinstance(found, dict):
        return found
    _open.append(found)
    return found.about()


def _ocr() -> Any:
    """The module for text recognition."""
    # The buffers of its threads are addresses, which are what a child is limited in.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from raypipe.readers.documents import ocr  # with NumPy, which text needs nothing of

    return ocr


class Pdf:
    def __init__(self, document: pdfium.PdfDocument) -> None:
        self._document = document

    def about(self) -> dict[str, Any]:
        """Number of pages, title, outline; whether an owner's password restricts it, and whether it is a form
        of XFA, whose pages say that they are none."""
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
            return []  # an outline is a help, no more

    def page(self, index: int) -> dict[str, Any]:
        """Text of a page, with U+FFFE for each hyphen at a line's end, and its printed label. Raises
        UnusableLine."""
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
        """Returns what text recognition reads on the picture of a page: text, its confidence."""
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
    """The PDF in these bytes. Raises UnusableLine: encrypted, broken, too_large."""
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
    """The horizontal and the vertical lines that a page draws."""
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
    """The straight pieces of a path, on the page."""
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
    """Returns how much of a page its largest images cover, about: 0..1."""
    width, height = page.get_size()
    area = 0.0
    images = page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=3)
    for image in itertools.islice(images, PICTURES):
        left, bottom, right, top = image.get_bounds()
        area += max(0.0, right - left) * max(0.0, top - bottom)
    return float(min(1.0, area / max(width * height, 1.0)))
