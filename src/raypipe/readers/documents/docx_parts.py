"""Parts of a docx, found as Word finds them: by the relations of the package and of its parts.

Names of parts differ between programs ("word/document2.xml", "Word\\Document.xml"). Knows zip and relations,
nothing of what a part says.
"""

from __future__ import annotations

import posixpath
import zipfile
from functools import cache
from typing import IO, NamedTuple
from urllib.parse import unquote

from lxml import etree

MAIN, CORE = "word/document.xml", "docProps/core.xml"  # where a package does not name them
RELATIONS_BYTES = 16 << 20  # of one file of relations; 10,000 of them have 2 MB


class Damaged(Exception):
    """Its arguments: reason, and detail."""


class PartRelation(NamedTuple):
    kind: str  # the last part of its type: officeDocument, styles, aFChunk, ...
    target: str  # the name of a part, or an address outside
    outside: bool


class Package:
    """The parts of an open docx by their names, which differ in neither case nor kind of slash."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._names = {_plain(name): name for name in archive.namelist()}
        found = (r.target for r in self.relations("").values() if r.kind == "officeDocument")
        self.main = next(found, MAIN)
        if self.main not in self:
            raise Damaged("broken", f"expected the part {self.main}, found none")

    def __contains__(self, part: str) -> bool:
        return _plain(part) in self._names

    def open(self, part: str) -> IO[bytes]:
        return self._archive.open(self._names[_plain(part)])

    def part(self, kind: str) -> str | None:
        """The part of the document that is its styles, numbering, footnotes, ...; None: it has none."""
        usual = posixpath.join(posixpath.dirname(self.main), f"{kind}.xml")
        related = (r.target for r in self.relations(self.main).values() if r.kind == kind)
        return next((part for part in (*related, usual) if part in self), None)

    def core(self) -> str | None:
        related = (r.target for r in self.relations("").values() if r.kind == "core-properties")
        return next((part for part in (*related, CORE) if part in self), None)

    @cache  # noqa: B019, a package lives as long as one read
    def relations(self, part: str) -> dict[str, PartRelation]:
        """The relations of a part by their ids; "": of the package."""
        folder, base = posixpath.split(part)
        name = posixpath.join(folder, "_rels", f"{base}.rels")
        if name not in self:
            return {}
        with self.open(name) as stream:
            tree = etree.fromstring(stream.read(RELATIONS_BYTES), etree.XMLParser(resolve_entities=False))
        found = {}
        for element in tree.iter("{*}Relationship"):
            target, outside = element.get("Target", ""), element.get("TargetMode") == "External"
            inner = posixpath.join("/", folder, unquote(target).replace("\\", "/"))
            path = target if outside else posixpath.normpath(inner)
            kind = element.get("Type", "").rpartition("/")[2]
            found[element.get("Id", "")] = PartRelation(kind, path.lstrip("/"), outside)
        return found


def _plain(name: str) -> str:
    return name.replace("\\", "/").lstrip("/").lower()
