"""What one file may take. docs/files.md says where each number comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Caps that keep a hostile or broken file from costing more than itself."""

    file_bytes: int = 256 << 20  # of any file: a PDF is held whole by the child that reads it
    text_bytes: int = 20_000_000  # of txt, md, html and csv: `parse` reads no longer page
    file_s: float = 120.0  # wall time of one file
    page_wall_s: float = 20.0  # of one page: a machine with much else to do takes ten times as long
    page_cpu_s: float = 2.0  # text pages took .005 to .04 s
    whole_wall_s: float = 60.0  # of a docx, which is read as one
    whole_cpu_s: float = 30.0
    memory_bytes: int = 1 << 30  # on top of what the child has when it starts
    pages: int = 5_000
    page_chars: int = 2_000_000
    file_chars: int = 20_000_000
    lost_pages: int = 20  # pages that may kill the child before the rest of a file is given up
    zip_member_bytes: int = 64 << 20  # unpacked
    zip_ratio: int = 200  # of a member that is larger than zip_ratio_free_bytes
    zip_ratio_free_bytes: int = 1 << 20
    zip_members: int = 10_000
    zip_bytes: int = 256 << 20  # of all members, unpacked


DOCUMENT_LIMITS = DocumentLimits()
