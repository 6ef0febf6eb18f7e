"""What is forgotten, taken out of folders of runs (tables of results, predictions, pages); and of the folders
that plugins write.

A question whose answer rests on it keeps its verdict and its measures, so that the run can be compared as
before, and loses the answer, its replies and prompts, and the passages that are gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.core.errors import DataError
from raypipe.core.plugin_tables import Registry
from raypipe.core.records import parse_chunk_id
from raypipe.evaluation.export import write_predictions
from raypipe.evaluation.report.report import RunFolder
from raypipe.evaluation.result_table import each, metadata
from raypipe.evaluation.view.pages import write_page
from raypipe.metrics.textfile import replacing, write_json, write_text
from raypipe.runs.changes import earlier_run
from raypipe.runs.forget.apply import moved
from raypipe.runs.forget.mentions import Mentions
from raypipe.runs.forget.records import ForgetDecision
from raypipe.runs.manifest import answer_keys, read
from raypipe.store import Store
from raypipe.store.layout import MANIFESTS

ROWS = 100  # of a table in memory
LINES = (".jsonl", ".trec", ".tsv", ".csv")  # files of lines: those that hold it go, the others stay
TEXTS = (".json", ".html", ".md", ".txt")


def run_folders(places: list[Path], store: Store) -> list[Path]:
    """The folders of runs of a store, in these places and below them, also of evals that were killed. The
    store may have been moved."""
    found = dict.fromkeys(f.parent for place in places for f in sorted(place.rglob("results.parquet")))
    known = {n.removesuffix(".json").partition("-")[2] for n in store.files.names(MANIFESTS)}
    return [f for f in found if _is_of(RunFolder(f), store.uri, known)]


def _is_of(run: RunFolder, store: str, runs: set[str]) -> bool:
    try:
        tree = json.loads(run.manifest.read_text()) if run.manifest.is_file() else metadata(run.results)
        return tree.get("store") == store or tree["run"] in runs
    except (DataError, ValueError, KeyError, TypeError, AttributeError, OSError):
        return False  # another program's file of this name


def is_whole(folder: Path) -> bool:
    """Whether the files of a run's folder are those of its manifest. Else the same eval writes them again."""
    try:
        return read(folder).run == metadata(RunFolder(folder).results)["run"]
    except DataError:
        return False


def resting(folder: Path, decision: ForgetDecision) -> list[str]:
    """Ids of the questions of a run whose rows hold it, or rest on it."""
    return [row["id"] for row in _rows(RunFolder(folder).results) if _rests(row, decision)]


def _rows(table: Path) -> Iterator[dict[str, Any]]:
    return each(table, metadata(table)["run"])


def _rests(row: dict[str, Any], decision: ForgetDecision) -> bool:
    target = decision.target
    if row["id"] in target.questions or any(_of(h, decision) for h in row["hits"] or ()):
        return True
    if any(q["source"] in target.sources for q in row["quotes"] or ()):
        return True
    return decision.mentions.within(
        [row["answer"], row["judge_response"], row["replies"], row["hits"], row["quotes"]]
    )


def _of(hit: dict[str, Any], decision: ForgetDecision) -> bool:
    return parse_chunk_id(hit["chunk"])[0] in decision.target.sources


def held_files(folder: Path, decision: ForgetDecision) -> list[Path]:
    """Other files of a run's folder that repeat it."""
    told = decision.mentions
    known = {RunFolder(folder).results, RunFolder(folder).predictions, RunFolder(folder).page}
    found = [f for f in sorted(folder.rglob("*")) if f.is_file() and f not in known]
    return [f for f in found if f.suffix in (*LINES, *TEXTS) and told(f.read_text(errors="replace"))]


def take_out(store: Store, folder: Path, decision: ForgetDecision) -> None:
    """Takes it out of one folder. The same call again changes nothing."""
    run, told = RunFolder(folder), decision.mentions
    for file in held_files(folder, decision):
        _file(file, told)
    if not is_whole(folder):
        for file in (run.manifest, run.results, run.predictions, run.report, run.page):
            file.unlink(missing_ok=True)
        return
    _table(run.results, decision)
    manifest = read(folder)
    write_predictions(run, manifest.run)
    text = moved(json.loads(run.manifest.read_text()), decision)
    asked = set(answer_keys(store, manifest.run))
    write_page(run, manifest, earlier_run(store, asked))
    if text is not None:
        write_text(run.manifest, text)


def _table(path: Path, decision: ForgetDecision) -> None:
    if not any(_rests(row, decision) for row in _rows(path)):
        return
    schema = pq.read_schema(path)
    with (
        replacing(path) as whole,
        pq.ParquetFile(path) as found,
        pq.ParquetWriter(whole, schema, compression="zstd") as out,
    ):
        for batch in found.iter_batches(ROWS):
            rows = [r for r in batch.to_pylist() if r["id"] not in decision.target.questions]
            for row in (r for r in rows if _rests(r, decision)):
                left = [h for h in row["hits"] or () if not _of(h, decision)]
                hits = [{**h, "text": None} if decision.mentions(h["text"] or "") else h for h in left]
                row |= {"answer": None, "replies": [], "judge_response": None, "quotes": [], "hits": hits}
            out.write_table(pa.Table.from_pylist(rows, schema))


def _file(file: Path, told: Mentions) -> None:
    """Takes lines out of a file of lines, entries out of JSON; another file goes."""
    text = file.read_bytes().decode("utf-8", "replace")
    if file.suffix in LINES:
        write_text(file, "\n".join(line for line in text.split("\n") if not told(line)))
    elif file.suffix == ".json":
        write_json(file, _pruned(json.loads(text), told))
    else:
        file.unlink()


def _pruned(value: Any, told: Mentions) -> Any:
    """JSON without the entries of lists, and the texts, that repeat it."""
    if isinstance(value, list):
        return [_pruned(v, told) for v in value if not told.within(v)]
    if isinstance(value, dict):
        return {k: _pruned(v, told) for k, v in value.items()}
    return "" if isinstance(value, str) and told(value) else value


class TextFolders(Protocol):
    """Folders outside of a store that hold texts of its questions, of a kind that a plugin writes."""

    def find(self, places: Sequence[Path]) -> list[Path]:
        """The folders of this kind in these places and below them."""
        ...

    def held(self, folder: Path, decision: ForgetDecision) -> tuple[str, int]:
        """The digest of what a folder has, and how many of its rows hold what is forgotten."""
        ...

    def take_out(self, folder: Path, decision: ForgetDecision) -> None:
        """Takes such rows out. The same call again changes nothing; a folder without any rows left loses its
        files."""
        ...


FOLDERS: Registry[TextFolders] = Registry("forgets", {}, "TextFolders")
"""Kind of such a folder -> what reads and rewrites it."""
