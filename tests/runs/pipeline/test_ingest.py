"""Files whose ids are those of other files: replaced as a whole, said, and never mixed; whatever dies."""

import gc
import io
import json
import shutil
import sys
import tracemalloc
from pathlib import Path

import pytest

from raypipe.api.cli.main import main
from raypipe.core.progress import Progress
from raypipe.core.records import Document, Source, source_id
from raypipe.readers import Row
from raypipe.runs.pipeline import ingest as ingesting
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.ingest_log import driving
from raypipe.store import Store
from raypipe.store.housekeeping import unfinished

SILENT = Progress(io.StringIO(), silent=True)


def line(name, number, id=None):
    """A question that only a file of this name asks, with its own page and truth."""
    page = {"page_name": "n", "page_snippet": "s", "page_last_modified": ""}
    page |= {"page_url": f"http://{name}/{number}", "page_result": f"<p>{name} {number}</p>"}
    row = {"interaction_id": id or f"q{number}", "query": f"what does {name} {number} say?"}
    row |= {"query_time": "1", "answer": f"{name} {number}", "alt_ans": [], "split": 0, "domain": "open"}
    row |= {"question_type": "simple", "static_or_dynamic": "static"}
    return row | {"search_results": [page]}


def written(folder, name, numbers):
    file = folder / f"{name}.jsonl"
    file.write_text("\n".join(json.dumps(line(name, n)) for n in numbers))
    return file


def told(store):
    """Question id -> who asks it, and whose truth it has."""
    asks = {r["id"]: r["text"].split()[2] for r in store.dataset("questions").to_table().to_pylist()}
    truths = store.dataset("golds").to_table().to_pylist()
    return {r["question"]: (asks[r["question"]], r["answers"][0].split()[0]) for r in truths}


def test_rows_that_take_the_place_of_others_are_said_with_the_file_that_had_them(tmp_path, capsys):
    alpha, beta = written(tmp_path, "alpha", range(6)), written(tmp_path, "beta", range(4))
    uri = str(tmp_path / "store")
    assert main(["ingest", str(alpha), "--store", uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replaced"] == []
    assert main(["ingest", str(beta), "--store", uri]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "replaced 4 questions that alpha.jsonl had: q0, q1, q2, ..." in said
    assert main(["ingest", str(beta), "--store", uri, "--json"]) == 0
    [rows] = json.loads(capsys.readouterr().out)["replaced"]
    assert rows == {"table": "questions", "rows": 4, "ids": ["q0", "q1", "q2"], "files": ["alpha.jsonl"]}
    gamma = written(tmp_path, "gamma", range(3, 6))
    [rows] = ingest(Store.open(uri), [gamma], "crag", SILENT).replaced
    assert (rows.rows, rows.files) == (3, ("beta.jsonl", "alpha.jsonl")), "4 and 5 are still alpha's"


def test_a_file_whose_questions_were_replaced_is_read_again_and_has_its_own_back(tmp_path):
    alpha, beta = written(tmp_path, "alpha", range(3)), written(tmp_path, "beta", range(3))
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(line("other", 9, id="another")))
    store = Store.create(str(tmp_path / "store"))
    for file in (alpha, other, beta):
        ingest(store, [file], "crag", SILENT)
    assert ingest(store, [other], "crag", SILENT).again, "none of its rows were replaced"
    assert not ingest(store, [alpha], "crag", SILENT).again
    assert set(told(store).values()) == {("alpha", "alpha"), ("other", "other")}


EVENTS = {"write", "remove", "_transact", "write_part", "stage", "commit"}
"""Functions of the store after each of which a kill leaves another state."""


def states(store, folder, work):
    """Copies of a store's folder, one after each event of some work: what a kill there leaves."""
    copies: list[Path] = []

    def watch(frame, happened, _):
        code = frame.f_code
        if happened == "return" and code.co_name in EVENTS and "raypipe/store" in code.co_filename:
            copies.append(shutil.copytree(store.uri, folder / str(len(copies))))
            shutil.rmtree(copies[-1] / "_lease")  # of a process that is dead then

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return copies


@pytest.mark.drill
def test_killed_after_any_write_an_ingest_leaves_the_old_rows_or_the_new_and_no_eval_meets_anothers(tmp_path):
    alpha, beta = written(tmp_path, "alpha", range(3)), written(tmp_path, "beta", range(3))
    store = Store.create(str(tmp_path / "store"))
    ingest(store, [alpha], "crag", SILENT)
    old = {f"q{i}": ("alpha", "alpha") for i in range(3)}
    new = {f"q{i}": ("beta", "beta") for i in range(3)}
    copies = states(store, tmp_path / "copies", lambda: ingest(store, [beta], "crag", SILENT))
    seen = set()
    for copy in copies:
        left = Store.open(str(copy))
        raw = told(left)
        with driving(left, "whatever comes next"):
            now = told(left)
            assert now in (old, new) and not unfinished(left)
        seen.add((raw == old, raw == new, now == new))
        for file, wanted in ((alpha, old), (beta, new)):
            assert ingest(left, [file], "crag", SILENT).questions == tuple(wanted)
            assert told(left) == wanted
    assert (False, False, True) in seen, "no copy was taken amid the commits"
    assert {(True, False, False), (False, True, True)} <= seen


def test_a_decision_that_is_damaged_is_dropped_and_the_files_are_read_again(tmp_path):
    alpha = written(tmp_path, "alpha", range(3))
    store = Store.create(str(tmp_path / "store"))
    store.files.write("_runs/ingest-0123.json", b"damaged")
    assert not ingest(store, [alpha], "crag", SILENT).again
    assert len(told(store)) == 3 and not unfinished(store)


def documents(count):
    """Rows of so many documents, made as they are taken."""
    for n in range(count):
        content = f"title {n}\nthe text of document {n}"
        source = Source(source_id("document", content), "document", content)
        yield Row(f"corpus.jsonl:{n}", document=Document(f"d{n}", f"title {n}", source.id), sources=(source,))


@pytest.mark.slow
def test_the_driver_holds_a_batch_of_a_file_however_many_rows_it_has(monkeypatch):
    monkeypatch.setattr(ingesting, "PART_BYTES", 100_000)
    peaks, most = [], 0
    for count in (1_000, 6_000):
        gc.collect()
        tracemalloc.start()
        for batch in ingesting.batches(documents(count)):
            most = max(most, len(batch.documents))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert most < 1_000
    assert peaks[1] < 1.5 * peaks[0], "what is kept grows with the file"


@pytest.mark.drill
@pytest.mark.slow
def test_a_large_collection_is_ingested_within_the_memory_of_a_small_one(tmp_path, monkeypatch):
    monkeypatch.setattr(ingesting, "PART_BYTES", 1 << 18)
    peaks = []
    for count in (1_000, 6_000):
        corpus = tmp_path / str(count)
        corpus.mkdir()
        lines = ({"_id": f"d{n}", "title": "t", "text": f"the text of document {n}"} for n in range(count))
        (corpus / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
        (corpus / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "which?"}))
        store = Store.create(str(tmp_path / f"store-{count}"))
        gc.collect()
        tracemalloc.start()
        ingest(store, [corpus], "beir", SILENT)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert store.count("documents") == count
    assert peaks[1] < 2 * peaks[0], "what is kept grows with the file"
