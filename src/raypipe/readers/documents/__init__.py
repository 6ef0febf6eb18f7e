"""Files of a folder to documents: txt, md, html, csv, pdf, docx and images, each known by its content.

`walk` finds the files, opens them safely and says what they are, `reader` reads one. PDF, images and docx are
read in limited child processes (`pdf`, `ocr`, `docx`).
"""

from raypipe.readers.documents.reader import DocumentReader, FileText, reader_of
from raypipe.readers.documents.walk import FoundFile, fresh_bytes, walk
from raypipe.readers.rows import DOCUMENT_LIMITS

__all__ = ["DOCUMENT_LIMITS", "DocumentReader", "FileText", "FoundFile", "fresh_bytes", "reader_of", "walk"]
