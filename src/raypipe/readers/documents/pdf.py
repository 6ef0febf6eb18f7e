"""One PDF through PDFium, page by page; runs in the limited child.

PDFium aborts where memory ends, is not safe for threads, and its character indices disagree with themselves:
so it lives in a child, alone, and nothing here counts on an index of it. What the document as a whole needs
(hyphens, headers, spans) is done by `page_text` in the parent.
"""

from __future__ import annotations

import itertools
from typing import Any

import pypdfium2 as pdfium
from pypdfium2 import raw

from raypipe.readers.documents.limits import DOCUMENT_LIMITS
from raypipe.readers.documents.reading_order import Box, in_order, zigzags

PDFIUM = str(pdfium.PDFIUM_INFO)
"""The build: the text of a page can differ between two."""

FEW_LETTERS = 20  # a page with fewer is looked at for images: a scan has none, with a stamp 10
BOXES = 5_000  # of text on a page; a page of a paper has some 120
IMAGES = 200  # looked at on a page
OUTLINE = 2_000  # entries
_PASSWORD = 4  # what `err_code` of an error says then; its text may change


class Pdf:
    def __init__(self, document: pdfium.PdfDocument) -> None:
        self._document = document

    def about(self) -> dict[str, Any]:
        """Number of pages, title, entries of the outline, and whether an owner's password restricts it."""
        return {
            "pages": len(self._document),
            "title": self._document.get_metadata_value("Title"),
            "outline": self._outline(),
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
        """Text of a page, with U+FFFE for each hyphen at a line's end, and its printed label; or a fault."""
        try:
            page = self._document[index]
        except (pdfium.PdfiumError, IndexError) as e:
            return _fault("bad_page", f"expected a page that PDFium can load: {e}")
        try:
            text = page.get_textpage()
            try:
                return self._read(page, text, index)
            finally:
                text.close()
        except pdfium.PdfiumError as e:
            return _fault("bad_page", f"expected a page whose text PDFium can read: {e}")
        finally:
            page.close()

    def _read(self, page: pdfium.PdfPage, text: pdfium.PdfTextPage, index: int) -> dict[str, Any]:
        if (count := text.count_chars()) > (most := DOCUMENT_LIMITS.page_chars):
            return _fault("too_large", f"expected at most {most:,} characters, found {count:,}")
        found, repaired = _ordered(text)
        letters = sum(map(str.isalpha, found))
        share = _image_share(page) if letters < FEW_LETTERS else 0.0
        return {
            "text": found, "label": self._document.get_page_label(index), "letters": letters, "images": share,
            "repaired": repaired,
        }  # fmt: skip

    def close(self) -> None:
        self._document.close()


def opened(data: bytes) -> Pdf | dict[str, Any]:
    """The PDF in these bytes, or a fault: encrypted, broken, too_large."""
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as e:
        code = getattr(e, "err_code", None)
        if code == _PASSWORD:
            return _fault("encrypted", "a password protects this PDF: save it without one")
        return _fault("broken", f"expected a whole PDF, PDFium cannot open it: {e}")
    pages, most = len(document), DOCUMENT_LIMITS.pages
    if 0 < pages <= most:
        return Pdf(document)
    document.close()
    if pages:
        return _fault("too_large", f"expected at most {most:,} pages, found {pages:,}")
    return _fault("broken", "expected pages, found none")


def _ordered(text: pdfium.PdfTextPage) -> tuple[str, bool]:
    count = text.count_rects()
    if 8 <= count <= BOXES:
        boxes = [Box(*text.get_rect(i)) for i in range(count)]
        if zigzags(boxes):
            lines = ([text.get_text_bounded(*boxes[i]).strip() for i in line] for line in in_order(boxes))
            return "\n".join(map(" ".join, lines)), True
    return text.get_text_range(), False


def _image_share(page: pdfium.PdfPage) -> float:
    """How much of a page its largest images cover, about: 0..1."""
    width, height = page.get_size()
    area = 0.0
    images = page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=3)
    for image in itertools.islice(images, IMAGES):
        left, bottom, right, top = image.get_bounds()
        area += max(0.0, right - left) * max(0.0, top - bottom)
    return float(min(1.0, area / max(width * height, 1.0)))


def _fault(reason: str, detail: str) -> dict[str, Any]:
    return {"fault": [reason, detail]}
