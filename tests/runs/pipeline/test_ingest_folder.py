"""A folder into a store: read once, cited by page, kept up to date by what changed; the rest is listed."""

import asyncio
import fcntl
import io
import json
import os
import re
import shutil
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import papers
import pyarrow.parquet as pq
import pytest
from no_memory import parsers_killed
from papers import READABLE
from reportlab.lib.pdfencrypt import StandardEncryption
from reruns import FAKES, Bench

from raypipe.api.cli.main import main
from raypipe.api.data import documents_store, ingest, ingest_documents
from raypipe.api.finished_runs import faults
from raypipe.api.indexes import require_documents_read
from raypipe.api.questions import rank
from raypipe.api.session import Session
from raypipe.core import arrow
from raypipe.core.errors import ConfError, DataError, WorkerBroken
from raypipe.core.progress import Progress
from raypipe.core.records import Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.driver import TaskSizes
from raypipe.runs.pipeline.ingest_folder import ingest_folder
from raypipe.runs.pipeline.ingest_log import Decision, driving
from raypipe.runs.pipeline.tasks import inline
from raypipe.serving.answerer import Answerer
from raypipe.serving.http import answer_response
from raypipe.serving.query import QueryRequest
from raypipe.store import Store
from raypipe.store.parts import sealed

pytestmark = pytest.mark.slow
SILENT = Progress(io.StringIO(), silent=True)


@pytest.fixture
def folder(tmp_path):
    """A folder with files of each kind, and all that cannot be read."""
    docs = tmp_path / "docs"
    (docs / "reports").mkdir(parents=True)
    data, _, _ = papers.reportlab_columns(1, 41, 24)
    (docs / "reports" / "rivers 2024.pdf").write_bytes(data)
    (docs / "survey.docx").write_bytes(papers.every_construct()[0])
    (docs / "notes.md").write_text(
        "# Notes\n\nThe ferry leaves at seven.\n\n# Prices\n\nA ticket costs nine.\n"
    )
    (docs / "page.html").write_text("<title>Harbour</title><p>The harbour opened in 1931.</p>")
    (docs / "towns.csv").write_text("town,people\nOstrava,280000\nTabor,34000\n")
    (docs / "plain.txt").write_text("The lighthouse keeper was called Vilma.")
    (docs / "cut.pdf").write_bytes(data[: len(data) // 2])
    (docs / "scan.pdf").write_bytes(papers.reportlab_scan(False)[0])
    (docs / "login.pdf").write_text("<html>log in</html>")
    (docs / "ragged.csv").write_text("stop,quay\n1,2,3\n")
    (docs / "loop").symlink_to(docs)
    os.mkfifo(docs / "pipe")
    with (docs / "huge.pdf").open("wb") as file:
        file.truncate(2 << 30)
    return docs


@pytest.fixture
def few(tmp_path):
    """A folder with files that no process of its own reads, the last of them in vain."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "notes.md").write_text("# Notes\n\nThe ferry leaves at seven.\n")
    (docs / "towns.csv").write_text("town,people\nOstrava,280000\nTabor,34000\n")
    (docs / "plain.txt").write_text("The lighthouse keeper was called Vilma.")
    (docs / "empty.txt").touch()
    return docs


REFUSED = {  # as a whole, or of ragged.csv a row
    "cut.pdf": "broken",
    "scan.pdf": "no_text",
    "login.pdf": "kind_mismatch",
    "ragged.csv": "ragged_rows",
    "loop": "loop",
    "pipe": "not_a_file",
    "huge.pdf": "too_large",
}


def read(tmp_path, folder, globs=()):
    return ingest_folder(Store.create(str(tmp_path / "store")), folder, globs, SILENT)


def indexed(tmp_path):
    pipe = Bench(tmp_path, tmp_path).pipeline()
    pipe.index(None)
    return pipe


def answered(pipe, text):
    """The answer of an endpoint to a question about the whole store."""

    async def one():
        kit = LocalKit(None, "transformers")
        found = await Answerer(pipe.recipe, kit, pipe.store.uri).answer(QueryRequest(Question("q", text)))
        await kit.close()
        return found

    return asyncio.run(one())


def asked(pipe, text):
    """The response with that answer."""
    return answer_response(answered(pipe, text), ("hits",)).model_dump(exclude_unset=True)


TIMES_S = (-(2**31) - 9, -1, 0, 2**31 + 9, 2**32 + 9, 10**10)  # 1901 to 2286, as clocks of 32 bits have them


def test_files_of_any_time_are_read_and_read_again_only_when_their_time_moves(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    for n, second in enumerate(TIMES_S):
        (docs / f"{n}.txt").write_text(f"The file {n} was written now.")
        os.utime(docs / f"{n}.txt", (second, second))
    undated = bytearray(papers.docx(papers.par(papers.run("A document without a day."))))
    for head, at in ((b"PK\x03\x04", 10), (b"PK\x01\x02", 12)):  # time and date of each member
        for found in re.finditer(head, bytes(undated)):
            undated[found.start() + at : found.start() + at + 4] = bytes(4)
    (docs / "undated.docx").write_bytes(undated)
    assert read(tmp_path, docs).counts["rows"] == len(TIMES_S) + 1
    assert read(tmp_path, docs).counts["unchanged_files"] == len(TIMES_S) + 1
    (docs / "0.txt").write_text("The file 0 was written yet.")  # as many bytes
    os.utime(docs / "0.txt", (-2, -2))
    assert read(tmp_path, docs).counts["unchanged_files"] == len(TIMES_S)


def test_a_folder_is_read_and_its_pages_are_cited(tmp_path, folder):
    done = read(tmp_path, folder)
    assert done.documents == done.counts["rows"] == 7
    assert done.reasons == {reason: 1 for reason in sorted(REFUSED.values())}
    pipe = indexed(tmp_path)
    layouts = {x.url: x for x in arrow.layout.records(pipe.store.scan("layouts"))}
    pdf = layouts["reports/rivers%202024.pdf"]
    assert pdf.title == "Sediment in invented rivers" and len(pdf.pages) == 4
    [text] = pipe.store.rows(pipe.recipe.texts_table, "source", [pdf.source])["text"].to_pylist()
    assert pdf.pages[-1].end == len(text)
    marker = next(p for p in papers.paragraphs(41, 24) if p.startswith("Marker41x20"))[:100]
    page = next(n for n, p in enumerate(pdf.pages, 1) if p.start <= text.index(marker) < p.end)
    found = asked(pipe, marker)
    assert found["hits"][0]["url"].startswith("reports/rivers%202024.pdf#page=")
    held = [h for h in found["hits"] if h["span"][0] <= text.index(marker) < h["span"][1]]
    assert any(
        f"#page={page}" in h["url"] and str(page) in h["page"] for h in held if h["title"] == pdf.title
    )
    for words, url, section in (
        ("The ferry leaves at seven", "notes.md", "Notes"),
        ("The harbour opened in 1931", "page.html", None),
        ("Tabor people", "towns.csv", None),
        ("lighthouse keeper Vilma", "plain.txt", None),
        ("In a content control", "survey.docx", "The annual report"),
    ):
        best = asked(pipe, words)["hits"][0]
        assert best["url"] == url and best["page"] is None
        assert section is None or best["section"] in (section, None)


def test_headings_of_a_web_page_are_its_sections_and_a_page_without_any_has_none(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "tides.html").write_text(
        "<title>Tides</title><p>About tides.</p><h2>Spring <i>tide</i></h2><p>It rises four metres.</p>"
        "<h2>Neap tide</h2><p>It rises one metre.</p>"
    )
    (docs / "bare.html").write_text("<p>The tide table hangs in the harbour.</p>")
    read(tmp_path, docs)
    pipe = indexed(tmp_path)
    layouts = answered(pipe, "how far does the tide rise?").places.layouts.values()
    text = {r["source"].hex(): r["text"] for r in pipe.store.scan(pipe.recipe.texts_table).to_pylist()}
    assert {x.url: [(s.label, text[x.source][s.start : s.end]) for s in x.sections] for x in layouts} == {
        "bare.html": [],
        "tides.html": [
            ("Spring tide", "Spring tide It rises four metres. "),
            ("Neap tide", "Neap tide It rises one metre."),
        ],
    }
    assert {x.title for x in layouts} == {"bare", "Tides"}


def test_what_cannot_be_read_is_listed_with_its_reason(tmp_path, folder, capsys, monkeypatch):
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    uri = str(tmp_path / "store")
    assert main(["ingest", str(folder), "--format", "files", "--store", uri]) == 0
    assert "7 documents" in capsys.readouterr().out
    assert main(["inspect", "--faults", "--store", uri, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["faults"]
    assert {r["id"].partition("#")[0]: r["reason"] for r in rows} == {
        f"docs/{name}": reason for name, reason in REFUSED.items()
    }
    assert {r["kind"] for r in rows} == {"files"} and all(r["detail"] for r in rows)


@pytest.mark.drill
def test_a_machine_without_memory_for_parsers_ends_the_read_and_the_next_reads_all(tmp_path, folder):
    with parsers_killed(), pytest.raises(WorkerBroken, match="No row is blamed"):
        read(tmp_path, folder)
    well = read(tmp_path, folder).counts
    refused = len(REFUSED) - 1  # ragged.csv is read, but for a row
    assert (well["rows"], well["faults"], well["unchanged_files"]) == (7, refused, 0)


def test_a_second_read_opens_nothing_and_a_changed_file_alone_is_read(tmp_path, few):
    def written():
        store = Path(Store.open(str(tmp_path / "store")).uri)
        return {p: p.stat().st_mtime_ns for p in store.rglob("*") if p.is_file() and "_lease" not in p.parts}

    read(tmp_path, few)
    before = written()
    again = read(tmp_path, few)
    assert written() == before, "an unchanged folder writes nothing, so no file more at each question"
    assert again.again and again.counts["bytes_read"] == 0
    assert again.counts["unchanged_files"] == again.counts["files"] == 4
    file = few / "plain.txt"
    file.write_text("The lighthouse keeper was called Bohumil.")
    third = read(tmp_path, few)
    assert third.counts["bytes_read"] == file.stat().st_size
    assert third.counts["rows"] == 1 and third.counts["unchanged_files"] == 3 and not third.replaced
    os.utime(file)  # written again, with equal bytes
    assert read(tmp_path, few).counts["unchanged_files"] == 4


def test_what_was_removed_or_changed_is_not_found_any_more(tmp_path, few):
    read(tmp_path, few)
    pipe = indexed(tmp_path)
    assert asked(pipe, "lighthouse keeper Vilma")["hits"][0]["url"] == "plain.txt"
    (few / "plain.txt").unlink()
    (few / "empty.txt").unlink()
    (few / "notes.md").write_text("# Notes\n\nThe bus leaves at eight.\n")
    done = read(tmp_path, few)
    assert done.counts["removed_files"] == 2 and done.counts["rows"] == 1
    pipe = indexed(tmp_path)
    urls = {h["url"] for h in asked(pipe, "lighthouse keeper Vilma ferry leaves at seven")["hits"]}
    assert "plain.txt" not in urls and "notes.md" in urls
    texts = " ".join(pipe.store.scan(pipe.recipe.texts_table)["text"].to_pylist())
    assert "Vilma" not in texts and "ferry" not in texts and "bus leaves" in texts
    assert not pipe.store.count("faults", "id LIKE 'docs/empty.txt%'")
    assert pipe.store.count("documents") == pipe.store.count("layouts") == pipe.store.count("sources") == 2


def test_a_text_that_another_file_has_too_stays(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("a.txt", "b.txt"):
        (docs / name).write_text("the same text in both")
    read(tmp_path, docs)
    (docs / "a.txt").unlink()
    read(tmp_path, docs)
    store = Store.open(str(tmp_path / "store"))
    assert store.count("sources") == store.count("documents") == 1


def test_a_read_that_was_killed_after_its_decision_is_finished_by_the_next(tmp_path, few):
    done = read(tmp_path, few)
    store = Store.open(str(tmp_path / "store"))
    [gone] = [x for x in arrow.layout.records(store.scan("layouts")) if x.url == "plain.txt"]
    rows = {"documents": (gone.id,), "layouts": (gone.id,), "sources": (gone.source,)}
    [name] = store.files.names("_folders")
    decision = Decision("0" * 32, {}, (), done, rows, (f"_folders/{name}", '{"files": {}}'))
    store.files.write(f"_runs/ingest-{done.fingerprint}.json", sealed(json.dumps(asdict(decision))))
    with driving(store, "test"):
        pass
    assert store.count("documents") == store.count("layouts") == store.count("sources") == 2
    again = read(tmp_path, few)
    assert again.counts["rows"] == store.count("sources") == 3


@pytest.mark.drill
def test_a_reader_of_another_build_reads_again(tmp_path, folder):
    read(tmp_path, folder)
    store = Store.open(str(tmp_path / "store"))
    [name] = store.files.names("_folders")
    state = store.files.read(f"_folders/{name}").decode()
    older, many = re.subn(r'"pdf/\d+/', '"pdf/0/', state)
    assert many == 1
    store.files.write(f"_folders/{name}", older.encode())
    done = read(tmp_path, folder)
    assert done.counts["rows"] == 1 and done.counts["unchanged_files"] == 12


def test_a_name_that_is_no_utf8_is_read_and_cited_by_its_bytes(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "kept.txt").write_text("The ferry leaves at seven.")
    (docs / os.fsdecode(b"Pr\xfcfung.txt")).write_text("The lighthouse keeper was called Vilma.")
    (docs / os.fsdecode(b"leer\xfc.txt")).touch()
    assert read(tmp_path, docs).documents == 2
    store = Store.open(str(tmp_path / "store"))
    assert set(store.scan("layouts")["url"].to_pylist()) == {"kept.txt", "Pr%FCfung.txt"}
    [fault] = store.scan("faults")["id"].to_pylist()
    assert fault.startswith("docs/leer\N{REPLACEMENT CHARACTER}.txt#")
    assert read(tmp_path, docs).counts["unchanged_files"] == 3


def test_a_file_that_could_not_be_opened_is_tried_by_the_next_read(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "kept.txt").write_text("The ferry leaves at seven.")
    (docs / "held.txt").write_text("The lighthouse keeper was called Vilma.")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # tells the holder that someone wants the file
    with (docs / "held.txt").open("r+") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert read(tmp_path, docs).reasons == {"unreadable": 1}
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, before)
    assert read(tmp_path, docs).documents == 2


def test_globs_choose_and_a_folder_without_documents_is_refused(tmp_path, few):
    assert read(tmp_path, few, ["*.md", "*.txt", "!plain*"]).documents == 1
    with pytest.raises(DataError, match=r"none of 1 files could be read:\n  docs/empty.txt: empty"):
        read(tmp_path / "other", few, ["empty.txt"])
    with pytest.raises(DataError, match="found no files"):
        read(tmp_path / "third", few, ["*.xyz"])
    with pytest.raises(DataError, match="no such file or folder"):
        read(tmp_path / "fourth", few / "none")
    with pytest.raises(DataError, match="the store is empty"):
        faults(store=tmp_path / "other" / "store")
    with pytest.raises(DataError, match="no questions"):
        rank("collection-bm25", store=tmp_path / "other" / "store")


def test_a_folder_has_a_store_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("some text")
    done = ingest_documents(docs)
    assert done.store == documents_store(docs, Session()) == documents_store(docs / ".." / "docs", Session())
    assert Path(done.store).is_dir()
    assert done.summary.documents == 1 and "1 documents" in done.title
    assert re.fullmatch(r"docs-docs-[0-9a-f]{6}", Path(done.store).name)
    shutil.rmtree(docs)
    with pytest.raises(ConfError, match="nothing at"):
        ingest_documents(docs)


@pytest.mark.drill
def test_several_folders_stay_apart_in_one_store(tmp_path):
    one, two = (tmp_path / name / "docs" for name in ("one", "two"))
    for folder in (one, two):
        folder.mkdir(parents=True)
        (folder / "same.txt").write_text(f"text of {folder.parent.name}")
        (folder / "empty.txt").touch()
        read(tmp_path, folder)
    store = Store.open(str(tmp_path / "store"))
    assert store.count("documents") == store.count("faults") == 2
    (one / "same.txt").write_text("changed")
    (one / "empty.txt").unlink()
    read(tmp_path, one)
    assert sorted(store.scan("sources")["content"].to_pylist()) == ["changed", "text of two"]
    assert store.count("faults") == 1  # that of the other folder, whose name is equal


def test_a_report_names_the_page_of_a_file(tmp_path, folder):
    read(tmp_path, folder)
    said = next(p for p in papers.paragraphs(41, 24) if p.startswith("Marker41x20"))
    queries = tmp_path / "queries.jsonl"
    queries.write_text(json.dumps({"id": "q1", "query": said[:100], "answer": "Marker41x20"}))
    pipe = Bench(tmp_path, tmp_path).pipeline()
    done = evaluate(pipe, [queries], tmp_path / "out", EvalOptions("rows"))
    [hits] = pq.read_table(done.folder.results, columns=["hits"])["hits"].to_pylist()
    found = next(h for h in hits if h["text"] and "Marker41x20" in h["text"])
    assert re.fullmatch(r"reports/rivers%202024\.pdf#page=\d", found["url"])
    assert found["file"] == (folder / "reports" / "rivers 2024.pdf").as_uri(), "wherever the report lies"
    row = json.loads(done.folder.predictions.read_text())
    assert any("#page=" in hit["url"] for hit in row["hits"])
    assert {x.kind for x in done.faults.rows} == {"files"} and len(done.faults.rows) == len(REFUSED)


def test_a_recipe_that_reads_no_documents_is_refused(tmp_path, few):
    read(tmp_path, few)
    pipe = Bench(tmp_path, tmp_path).pipeline(FAKES.replace("page, snippet, document", "page, snippet"))
    with pytest.raises(ConfError, match=r"3 of .* are of kind document"):
        require_documents_read(pipe.recipe, pipe.store)


@pytest.mark.drill
def test_work_of_a_killed_index_does_not_bring_a_removed_file_back(tmp_path, folder):
    read(tmp_path, folder)
    pipe = Bench(tmp_path, tmp_path).pipeline(sizes=TaskSizes(1, 1))

    def killed(verb, work, tasks):
        for n, result in enumerate(inline(verb, work, tasks)):
            yield result
            if n == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(pipe, runner=killed).index(None)
    for name in ("plain.txt", "notes.md", "towns.csv"):
        (folder / name).unlink()
    read(tmp_path, folder)
    pipe = indexed(tmp_path)
    assert pipe.store.count(pipe.recipe.texts_table) == 4
    assert "Vilma" not in " ".join(pipe.store.scan(pipe.recipe.texts_table)["text"].to_pylist())


@pytest.mark.drill
def test_a_folder_of_all_that_there_is_ends_in_time_with_a_reason_for_each_file(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    for n, made in enumerate(READABLE.values()):
        (docs / f"readable{n:02}.pdf").write_bytes(made()[0])
    whole = papers.reportlab_columns(1, 4)[0]
    locked = papers.reportlab_columns(1, 4, encrypt=StandardEncryption("secret"))[0]
    broken = {
        "laughs": papers.laughs(),
        "flate": papers.flate_bomb(),
        "million": papers.million_pages(),
        "locked": locked,
        "cut": whole[: len(whole) // 2],
        "scan": papers.reportlab_scan(False)[0],
        "blank": papers.raw_pages([papers.stream(b"")]),
        "none": b"%PDF-1.7 and nothing else",
    }
    for name, data in broken.items():
        (docs / f"{name}.pdf").write_bytes(data)
    (docs / "all.docx").write_bytes(papers.every_construct()[0])
    (docs / "loop").symlink_to(docs)
    os.mkfifo(docs / "pipe")
    with (docs / "huge.pdf").open("wb") as file:
        file.truncate(2 << 30)
    started = time.monotonic()
    done = read(tmp_path, docs)
    assert time.monotonic() - started < 240, "two of the bombs take seconds of CPU each"
    assert done.documents == len(READABLE) + 1
    rows = Store.open(str(tmp_path / "store")).scan("faults").to_pylist()
    reasons = {r["id"].rpartition("#")[0].removeprefix("docs/"): r["reason"] for r in rows}
    assert reasons.keys() == {*(f"{name}.pdf" for name in broken), "loop", "pipe", "huge.pdf"}
    assert reasons["million.pdf"] == reasons["huge.pdf"] == "too_large"
    assert {reasons["laughs.pdf"], reasons["flate.pdf"]} <= {"timeout", "memory"}
    pipe = indexed(tmp_path)
    texts = [made()[1] for made in READABLE.values()]
    for marker in {re.findall(r"Marker\d+x\d+", text)[-1] for text in texts if "Marker" in text}:
        hits = asked(pipe, f"{marker} {marker}")["hits"]
        pages = {h["url"].partition("#page=")[0] for h in hits if h["page"] and "#page=" in h["url"]}
        held = {f"readable{n:02}.pdf" for n, text in enumerate(texts) if marker in text}
        assert held & pages, marker
    again = read(tmp_path, docs)
    assert again.counts["bytes_read"] == 0 and again.counts["rows"] == 0
    (docs / "readable00.pdf").write_bytes(papers.by_hand(77)[0])
    changed = read(tmp_path, docs)
    assert changed.counts["rows"] == 1 and changed.counts["bytes_read"] == len(papers.by_hand(77)[0])


def test_a_folder_of_documents_takes_no_kind_of_golds(tmp_path):
    (tmp_path / "a.txt").write_text("The bridge opened in 1932.")
    with pytest.raises(ConfError, match="a folder of documents brings no golds"):
        ingest(tmp_path, tmp_path / "store", "files", kind="qa")
    assert not (tmp_path / "store").exists()


def test_answers_about_the_whole_store_follow_the_names_and_times_of_files(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    file = docs / "tides 2024.txt"
    file.write_text("The tide rises four metres.")
    read(tmp_path, docs)
    pipe = Bench(tmp_path, tmp_path).pipeline()

    def snapshot():
        read(tmp_path, docs)
        return pipe.snapshot()

    first = snapshot()
    assert snapshot() == first
    file.rename(docs / "tides 2025.txt")
    assert snapshot() != first, "the text is the same, and its date another"
