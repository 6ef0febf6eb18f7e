"""Work of the limited child (`core.sandbox`): a PDF through PDFium, page by page, and a docx.

PDFium aborts where memory ends, is not safe for threads, and its character indices disagree with themselves:
so it lives in a child, alone, and nothing here counts on an index of it. What the document as a whole needs
(hyphens, headers, spans) is done by `page_text` in the parent.

PDFium gives the order of the content stream, which is right in the files of all real producers. Only where it
jumps to and fro between two full columns is it sorted: measured .46 to 1.00 of markers in order, and no false
repair on 95 pages.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import pypdfium2 as pdfium
from pypdfium2 import raw

from raypipe.readers.documents import docx
from raypipe.readers.documents.page_text import table_row
from raypipe.readers.rows import DOCUMENT_LIMITS

PDFIUM = str(pdfium.PDFIUM_INFO)
"""The build: the text of a page can differ between two."""

FEW_LETTERS = 20  # a page with fewer is looked at for images: a scan has none, with a stamp 10
BOXES = 5_000  # of text on a page; a page of a paper has some 120
IMAGES = 200  # looked at on a page
OUTLINE = 2_000  # entries
_PASSWORD = 4  # what `err_code` of an error says then; its text may change
JUMPS = 0.25  # share of neighbours that jump, above which a page zigzags
CROSSING = 0.20  # share of boxes over the middle, below which it has two columns
GAP = 1.5  # heights of a letter between two cells; the widest space of justified prose here has 1.2
FULL = 0.60  # of its column a line of prose fills; a cell of a table less

OPEN, PAGE, DOCX, PROBE = b"O", b"P", b"D", b"?"

_open: list[Pdf] = []  # at most one


def answer(request: bytes) -> bytes:
    """The reply to a request, as JSON. A request is one byte, which says what to do, and its data.

    The child keeps the PDF that it opened last. PROBE asks whether it is well: it makes a PDF of one page."""
    return json.dumps(_answer(request[:1], request[1:])).encode()


def _answer(what: bytes, data: bytes) -> dict[str, Any]:
    if what == PROBE:
        made = pdfium.PdfDocument.new()
        made.new_page(595, 842).close()
        document = Pdf(made)
        try:
            return document.page(0)
        finally:
            document.close()
    if what == PAGE:
        return _open[0].page(int.from_bytes(data, "little"))
    while _open:
        _open.pop().close()
    if what == DOCX:
        return docx.read(data)
    found = opened(data)
    if not isinstance(found, Pdf):
        return found
    _open.append(found)
    return found.about()


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
        """Text of a page, with U+FFFE for each hyphen at a line's end, and its printed label; or a fault."""
        try:
            page = self._document[index]
        except (pdfium.PdfiumError, IndexError) as e:
            return _fault("bad_page", f"expected a page that PDFium can load: {e}")
        try:
            text = page.get_textpage()
            try:
                if (count := text.count_chars()) > (most := DOCUMENT_LIMITS.page_chars):
                    return _fault("too_large", f"expected at most {most:,} characters, found {count:,}")
                found, repaired = _ordered(text)
                letters = sum(map(str.isalpha, found))
                share = _image_share(page) if letters < FEW_LETTERS else 0.0
                return {
                    "text": found, "label": self._document.get_page_label(index), "letters": letters,
                    "images": share, "repaired": repaired,
                }  # fmt: skip
            finally:
                text.close()
        except pdfium.PdfiumError as e:
            return _fault("bad_page", f"expected a page whose text PDFium can read: {e}")
        finally:
            page.close()

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
    if 4 <= count <= BOXES:
        boxes = [Box(*text.get_rect(i)) for i in range(count)]
        if zigzags(boxes):
            lines = ([text.get_text_bounded(*boxes[i]).strip() for i in line] for line in in_order(boxes))
            return "\n".join(map(" ".join, lines)), True
        rows = [[text.get_text_bounded(*box) for box in cells] for cells in table_rows(boxes)]
        return with_rows(text.get_text_range(), rows), False
    return text.get_text_range(), False


def _image_share(page: pdfium.PdfPage) -> float:
    """Returns how much of a page its largest images cover, about: 0..1."""
    width, height = page.get_size()
    area = 0.0
    images = page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=3)
    for image in itertools.islice(images, IMAGES):
        left, bottom, right, top = image.get_bounds()
        area += max(0.0, right - left) * max(0.0, top - bottom)
    return float(min(1.0, area / max(width * height, 1.0)))


def _fault(reason: str, detail: str) -> dict[str, Any]:
    return {"fault": [reason, detail]}


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    @property
    def height(self) -> float:
        """Size of its letters, about."""
        return max(self.top - self.bottom, 1.0)


def zigzags(boxes: Sequence[Box]) -> bool:
    """Returns whether the order of the boxes jumps between two columns of prose."""
    middle = _middle(boxes)
    sides = [_side(b, middle) for b in boxes]
    if sides.count(0) >= CROSSING * len(boxes):
        return False
    jumps = sum(
        (s * t == -1 and abs(a.bottom - b.bottom) < 0.4 * a.height)  # on one line, left and right
        or b.bottom > a.top + a.height
        for a, b, s, t in zip(boxes, boxes[1:], sides, sides[1:], strict=False)
    )
    if jumps <= JUMPS * (len(boxes) - 1):
        return False
    column = (max(b.right for b in boxes) - min(b.left for b in boxes)) / 2
    full = [sum(b.right - b.left for b, s in zip(boxes, sides, strict=True) if s == side) for side in (-1, 1)]
    lines = [len({round(b.bottom) for b, s in zip(boxes, sides, strict=True) if s == n}) for n in (-1, 1)]
    return min(lines) > 2 and median(w / n for w, n in zip(full, lines, strict=True)) > FULL * column


def in_order(boxes: Sequence[Box]) -> list[list[int]]:
    """The numbers of the boxes, line by line: what crosses the middle parts the page into bands, and within a
    band the left column is before the right one."""
    middle = _middle(boxes)
    across = sorted(-b.bottom for b in boxes if _side(b, middle) == 0)

    def key(i: int) -> tuple[int, int, float, float]:
        box = boxes[i]
        above = bisect_right(across, box.height / 2 - box.bottom)
        return above, _side(box, middle), -box.bottom, box.left

    lines: list[list[int]] = []
    for i in sorted(range(len(boxes)), key=key):
        last = boxes[lines[-1][-1]] if lines else None
        same = last is not None and abs(last.bottom - boxes[i].bottom) < 0.4 * boxes[i].height
        if same and last is not None and _side(last, middle) == _side(boxes[i], middle):
            lines[-1].append(i)
        else:
            lines.append([i])
    return [sorted(line, key=lambda i: boxes[i].left) for line in lines]


def table_rows(boxes: Sequence[Box]) -> list[list[Box]]:
    """The boxes of each line that white space parts into cells: two letters wide, or more."""
    lines: list[list[list[Box]]] = []  # of cells, of boxes
    last: Box | None = None
    for box in boxes:
        same = last is not None and abs(last.bottom - box.bottom) < 0.4 * last.height
        if last is None or not same or box.left < last.right - 1:
            lines.append([[box]])
        elif box.left - last.right > GAP * min(box.height, last.height):
            lines[-1].append([box])
        else:
            lines[-1][-1].append(box)
        last = box
    return [
        [Box(c[0].left, min(b.bottom for b in c), c[-1].right, max(b.top for b in c)) for c in line]
        for line in lines
        if len(line) > 1
    ]


def with_rows(text: str, rows: Sequence[Sequence[str]]) -> str:
    """The text with its lines that are rows, but for white space, as rows of a table.

    >>> with_rows("Weight 17 kg\\r\\nIt is new.", [["Weight ", "17 kg"]])
    '| Weight | 17 kg |\\nIt is new.'
    """
    known = {
        "".join("".join(cells).split()): table_row([" ".join(c.split()) for c in cells]) for cells in rows
    }
    return "\n".join(known.get("".join(line.split()), line) for line in text.splitlines())


def _middle(boxes: Sequence[Box]) -> float:
    return (min(b.left for b in boxes) + max(b.right for b in boxes)) / 2


def _side(box: Box, middle: float) -> int:
    """-1: left of the middle, 1: right of it, 0: across."""
    slack = box.height
    return -1 if box.right < middle + slack else 1 if box.left > middle - slack else 0
