"""Readers that turn the files of a folder into documents: txt, md, html, csv, pdf, docx and images.

`walk` finds the files, opens them safely and detects their kinds by content. `reader` reads one file. PDF,
images and docx are read in child processes with limits (`pdf`, `ocr`, `docx`).
"""

from raypipe.readers.documents.reader import DocumentReader, FileText, reader_of
from raypipe.readers.documents.walk import FoundFile, fresh_bytes, walk
from raypipe.readers.rows import DOCUMENT_LIMITS

__all__ = ["DOCUMENT_LIMITS", "DocumentReader", "FileText", "FoundFile", "fresh_bytes", "reader_of", "walk"]
