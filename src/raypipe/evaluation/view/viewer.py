"""What `raypipe view` answers to the browser: the list of runs, the page of one or two, details, labels.

Knows paths and bodies, no socket. Not for several threads at once.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import SplitResult, parse_qs, quote, urlsplit

from raypipe.core.errors import DataError, RaypipeError
from raypipe.evaluation.labels import PersonLabels, add_label, read_labels
from raypipe.evaluation.view.details import BLOCK, RunTable, block
from raypipe.evaluation.view.pair_page import OpenPair, open_pair, pair_page
from raypipe.evaluation.view.rows import LABELS
from raypipe.evaluation.view.run_list import RunList
from raypipe.evaluation.view.run_page import STYLES, ShownParts, run_page
from raypipe.report import web_page
from raypipe.report.report import RunFolder
from raypipe.runs.changes import compared_with
from raypipe.runs.manifest import Manifest
from raypipe.store import Store

OPEN = 4  # tables kept open: two pairs
MOST_DIGITS = 10  # of a block's number

TableKey: TypeAlias = tuple[str, Path, int, int]
"""A table as it was opened: run id, path, time of change in nanoseconds, bytes. Another eval into the same
folder makes another table."""


@dataclass(frozen=True, slots=True)
class ViewReply:
    """What goes back to the browser."""

    status: int
    kind: str  # its media type
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Viewer:
    """Runs, and what is open of them."""

    def __init__(self, runs: RunList, labels: Path | None) -> None:
        """`labels`: the file that people's marks are written to; None: labels.jsonl in the run's folder."""
        self._runs, self._labels = runs, labels
        self._tables: OrderedDict[TableKey, RunTable] = OrderedDict()
        self._pairs: OrderedDict[tuple[TableKey, TableKey], OpenPair] = OrderedDict()

    def get(self, address: str) -> ViewReply:
        url = _split(address)
        match url.path.strip("/").split("/"):
            case [""]:
                return self._list()
            case ["pair"]:
                asked = parse_qs(url.query)
                ids = [asked.get(side, [""])[0] for side in "ab"]
                for id in ids:
                    self._folder(id)
                there = "/".join(quote(id, safe="") for id in ids)
                return ViewReply(303, "text/plain", b"", {"location": f"/pair/{there}/"})
            case ["run", run]:
                folder, manifest = self._folder(run)
                shown = ShownParts(served=True, labels=self._said(folder))
                return _page(*run_page(folder, manifest, known_before(manifest), shown))
            case ["run", run, "block", n]:
                return self._block([self._table(run)], n)
            case ["pair", a, b]:
                return _page(*pair_page(self._pair(a, b), ShownParts(served=True)))
            case ["pair", a, b, "block", n]:
                pair = self._pair(a, b)
                return self._block(list(pair.tables), n, [line.id for line in pair.lines])
        raise DataError(f"{url.path}: there is no such page")

    def post(self, address: str, body: Any) -> ViewReply:
        match _split(address).path.strip("/").split("/"), body:
            case ["pair", a, b, "paired"], {"rows": [*rows]} if all(type(r) is int for r in rows):
                return _json(asdict(self._pair(a, b).difference(rows)))
            case ["run", run, "label"], {"id": str(id), "label": str(label)} if label in LABELS:
                return self._label(run, id, label)
        raise DataError(f"{address}: expected rows, or an id and a label of {', '.join(LABELS)}")

    def _list(self) -> ViewReply:
        headers, unread = self._runs.listed()
        times = [time.strftime("%Y-%m-%d %H:%M", time.gmtime(h.finished)) for h in headers]
        listed = [asdict(h) | {"when": when} for h, when in zip(headers, times, strict=True)]
        return _page(*web_page.page("runs.html", STYLES, (), True, {"runs": listed, "unread": unread}))

    def _folder(self, run: str) -> tuple[RunFolder, Manifest]:
        if (found := self._runs.whole(run)) is None:
            raise DataError(f"run {run}: no folder here has it. Name its folder: raypipe view DIR")
        return found

    def _key(self, run: str) -> TableKey:
        path = self._folder(run)[0].results
        try:
            stat = path.stat()
        except OSError as e:
            raise DataError(f"{path}: expected the table of a finished eval, found none: {e.strerror}") from e
        return run, path, stat.st_mtime_ns, stat.st_size

    def _table(self, run: str) -> RunTable:
        key = self._key(run)
        if key not in self._tables:
            self._tables[key] = RunTable(key[1])
            if len(self._tables) > OPEN:
                self._tables.popitem(last=False)[1].close()
        return self._tables[key]

    def _pair(self, a: str, b: str) -> OpenPair:
        keys = self._key(a), self._key(b)
        if keys not in self._pairs:
            self._pairs[keys] = open_pair(self._folder(a), self._folder(b))
            if len(self._pairs) > OPEN // 2:
                self._pairs.popitem(last=False)[1].close()
        return self._pairs[keys]

    def _block(self, tables: list[RunTable], n: str, ids: list[str] | None = None) -> ViewReply:
        ids = tables[0].ids if ids is None else ids
        some = ids[int(n) * BLOCK :][:BLOCK] if n.isdecimal() and len(n) < MOST_DIGITS else []
        if not some:
            raise DataError(f"block {n}: there is no such block")
        return _json(block(tables, some))

    def _label(self, run: str, id: str, label: Any) -> ViewReply:
        folder, _ = self._folder(run)
        table = self._table(run)
        if id not in table or (answer := table.row(id)["answer"]) is None:
            raise DataError(f"{id}: expected a question of run {run} that was answered")
        file = self._file(folder)
        add_label(file, id, answer, label)
        return _json({"file": str(file)})

    def _file(self, folder: RunFolder) -> Path:
        return (self._labels or folder.path / "labels.jsonl").absolute()

    def _said(self, folder: RunFolder) -> PersonLabels:
        file = self._file(folder)
        return read_labels(file) if file.exists() else PersonLabels(str(file), {}, {})


def _split(address: str) -> SplitResult:
    """The parts of an address. Raises DataError for one that has none."""
    try:
        return urlsplit(address)
    except ValueError as e:
        raise DataError(f"{address}: expected an address ({e})") from e


def known_before(manifest: Manifest) -> Manifest | None:
    """The run that a run is held against; None: there is none, or the store that knows it is not here."""
    try:
        return compared_with(Store.open(manifest.store), manifest)
    except RaypipeError:
        return None


def refused(error: RaypipeError) -> ViewReply:
    """What the browser gets for what cannot be shown."""
    return _json({"detail": str(error)}, 404)


def failed(error: OSError) -> ViewReply:
    """What the browser gets where this machine reads or writes a file in vain."""
    place = f"{error.filename}: " if error.filename else ""
    return _json({"detail": f"{place}{error.strerror or error}. Mend that and try again"}, 500)


def _page(text: str, policy: str) -> ViewReply:
    headers = {"content-security-policy": policy + "; frame-ancestors 'none'", "cache-control": "no-store"}
    return ViewReply(200, "text/html; charset=utf-8", text.encode(), headers)


def _json(value: Any, status: int = 200) -> ViewReply:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return ViewReply(status, "application/json", text)
