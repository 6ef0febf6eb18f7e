"""Files read by tasks, each a shard of them: the rows of one process, whatever repeats and whatever dies."""

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.runs.pipeline.driver import no_connection
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.ingest_tasks import TaskReading
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store
from raypipe.store.files import READS
from raypipe.store.tables import INGEST_TABLES

SILENT = Progress(io.StringIO(), silent=True)


def crag_line(id, query, pages, asked="1"):
    """A question of CRAG with its search results: (address, html)."""
    found = [
        {"page_name": u, "page_snippet": "", "page_last_modified": "", "page_url": u, "page_result": h}
        for u, h in pages
    ]
    return {
        "interaction_id": id,
        "query": query,
        "query_time": asked,
        "answer": "a",
        "alt_ans": [],
        "domain": "open",
        "search_results": found,
    }


def crag(folder):
    """Files whose pages and questions repeat in others, of which one question is another under its id."""
    folder.mkdir()
    for f in range(2):
        lines = [
            json.dumps(
                crag_line(f"q{f}-{n}", f"what is {n}?", [(f"u{n}", f"<p>page {n}</p>"), (f"v{f}", "x")])
            )
            for n in range(6)
        ]
        lines[2] += "\r"
        lines[3:3] = ["", "{broken"]
        if f:
            lines.append(json.dumps(crag_line("q0-1", "what is 1?", [("u1", "<p>page 1</p>"), ("v0", "x")])))
            lines.append(json.dumps(crag_line("q0-2", f"another {f}", [(f"w{f}", f"<p>only of {f}</p>")])))
        (folder / f"part{f}.jsonl").write_text("\n".join(lines) + "\n" * (f % 2))
    (folder / "packed.jsonl.gz").write_bytes(
        gzip.compress(json.dumps(crag_line("z", "why?", [("u1", "<p>page 1</p>")])).encode())
    )
    (folder / "README.md").write_text("no data")
    return [folder]


def pages(folder):
    """A crawl in JSON lines and Parquet, in which addresses come again, later and earlier."""
    folder.mkdir()
    rows = [
        {"url": f"https://a.example/{n % 9}", "html": f"<p>fetch {n}</p>", "fetched_at": f"2024-03-{day:02}"}
        for n, day in enumerate([5, 6, 7, 8, 9, 5, 5, 5, 5, 9, 3, 7, 4, 9, 6, 2, 5, 5, 1, 1])
    ]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows[:12])))
    pq.write_table(pa.Table.from_pylist(rows[12:]), folder / "b.parquet", row_group_size=2)
    return [folder]


def corpus(folder):
    """A collection with questions and judgements; a document is there twice, and once more as another."""
    folder.mkdir()
    documents = [{"_id": f"d{n}", "title": f"t{n}", "text": f"text {n}"} for n in range(12)]
    documents += [documents[1], {"_id": "d2", "title": "other", "text": "text"}, {"_id": "e", "text": " "}]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"_id": f"q{n}", "text": "?"}) for n in range(3))
    )
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td1\t1\n")
    return [folder]


DATA = {  # how it is made, its format, bytes of a shard
    "crag": (crag, "crag", 1300),
    "pages": (pages, "rows", 400),
    "corpus": (corpus, "beir", 400),
}


def reading(store, shard_bytes=1300, least_bytes=0):
    return TaskReading(
        WorkerConfig(store.uri, "transformers", "cpu", 1), inline, no_connection, least_bytes, shard_bytes
    )


def rows(store):
    """Every row of the ingested tables and of faults, without the name of the run."""
    names = [t for t in (*INGEST_TABLES, "faults") if store.has(t)]
    return {
        t: sorted(
            json.dumps({k: v for k, v in r.items() if k != "run"}, sort_keys=True, default=bytes.hex)
            for r in found
        )
        for t in names
        if (found := store.scan(t).to_pylist())
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
def test_shards_give_the_rows_and_counts_of_one_process(tmp_path, name):
    make, format, size = DATA[name]
    data, reads = make(tmp_path / "data"), []
    old = tmp_path / "old.jsonl"
    old.write_text(json.dumps({"url": "https://a.example/1", "html": "<p>old</p>", "fetched_at": "2023"}))
    stores = [Store.create(str(tmp_path / n)) for n in ("one", "many")]
    for store, least in zip(stores, (1 << 30, 0), strict=True):
        if name == "pages":
            ingest(store, [old], "rows", SILENT)
        reads.append(ingest(store, data, format, SILENT, reading=reading(store, size, least)))
    alone, by_tasks = reads
    assert alone.read_by == "one process", "few small files"
    assert int(by_tasks.read_by.removesuffix(" tasks")) >= 3
    assert rows(stores[0]) == rows(stores[1])
    same = ("fingerprint", "questions", "counts", "reasons", "replaced", "documents", "kind")
    assert [getattr(by_tasks, f) for f in same] == [getattr(alone, f) for f in same]
    assert not stores[1].files.names(READS), "what tasks found is removed"
    if name == "pages":
        assert alone.replaced[0].ids == ("https://a.example/1",)
        assert not stores[1].count("sources", "content = '<p>old</p>'"), "nothing names it any more"


def test_a_damaged_file_among_shards_leaves_the_store_as_it_was(tmp_path):
    data = crag(tmp_path / "data")
    file = data[0] / "packed.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-4])
    store = Store.create(str(tmp_path / "store"))
    with pytest.raises(DataError, match=r"packed\.jsonl\.gz"):
        ingest(store, data, "crag", SILENT, reading=reading(store))
    assert rows(store) == {}


KILLED = """
import os, signal, sys
from test_ingest_tasks import SILENT, Store, Path, ingest, inline, no_connection, TaskReading, WorkerConfig

def killed(verb, work, tasks):
    for n, done in enumerate(inline(verb, work, tasks)):
        yield done
        if verb == "parse" and n == 2:
            os.kill(os.getpid(), signal.SIGKILL)

store = Store.open(sys.argv[1])
how = TaskReading(WorkerConfig(store.uri, "transformers", "cpu", 1), killed, no_connection, 0, 1300)
ingest(store, [Path(sys.argv[2])], "crag", SILENT, reading=how)
"""


@pytest.mark.drill
def test_a_killed_read_continues_with_the_shards_that_are_left(tmp_path):
    data = crag(tmp_path / "data")
    one, many = (Store.create(str(tmp_path / n)) for n in ("one", "many"))
    ingest(one, data, "crag", SILENT)
    here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", KILLED, many.uri, str(data[0])]
    died = subprocess.run(command, env={**os.environ, "PYTHONPATH": here}, check=False)
    assert died.returncode == -9
    done = []

    def watched(verb, work, tasks):
        for result in inline(verb, work, tasks):
            done.append((work.do.func.__name__, result.name))
            yield result

    how = TaskReading(WorkerConfig(many.uri, "transformers", "cpu", 1), watched, no_connection, 0, 1300)
    read = ingest(many, data, "crag", SILENT, reading=how)
    again = [name for kind, name in done if kind == "read_shard"]
    assert "000000" not in again[: len(set(again))][:1], "the first shards were done"
    assert rows(many) == rows(one)
    assert read.counts["rows"] == len(read.questions)
