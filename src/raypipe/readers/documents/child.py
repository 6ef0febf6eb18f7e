"""What the limited child does (`core.sandbox`): opens a PDF, gives its pages one by one, reads a docx.

A request is one byte, which says what to do, and its data; a reply is JSON. The child keeps the PDF that it
opened last. One that started after a page had killed the one before has none, and says so.
"""

from __future__ import annotations

import json
from typing import Any

from raypipe.readers.documents import docx, pdf

OPEN, PAGE, DOCX = b"O", b"P", b"D"
CLOSED = {"closed": True}  # the reply about a page, where no PDF is open

_open: list[pdf.Pdf] = []  # at most one


def answer(request: bytes) -> bytes:
    return json.dumps(_answer(request[:1], request[1:])).encode()


def _answer(what: bytes, data: bytes) -> dict[str, Any]:
    if what == PAGE:
        return _open[0].page(int.from_bytes(data, "little")) if _open else CLOSED
    while _open:
        _open.pop().close()
    if what == DOCX:
        return docx.read(data)
    opened = pdf.opened(data)
    if not isinstance(opened, pdf.Pdf):
        return opened
    _open.append(opened)
    return opened.about()
