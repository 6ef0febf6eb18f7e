"""What `raypipe view` answers, without a socket: list, pages, rows, marks, and refusals."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reruns import rename_run

from raypipe.api.finished_runs import list_runs
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import IDK
from raypipe.evaluation.judged_run import read_labels
from raypipe.evaluation.result_table import each
from raypipe.evaluation.view.rows import changed_first, facts, matrix, paired_line
from raypipe.evaluation.view.run_list import RunList
from raypipe.evaluation.view.viewer import Viewer, ViewServer
from raypipe.runs.record import read
from raypipe.store import Store
from raypipe.store.files import RECORDS


@pytest.fixture(scope="module")
def folders(ran: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: one that was made, and its copy under another id, with one answer that became right."""
    home = tmp_path_factory.mktemp("viewed")
    shutil.copytree(ran.folder / "out", home / "one")
    shutil.copytree(ran.folder / "out", home / "deep/two")
    rename_run(home / "deep/two", "f" * 32)
    return home


@pytest.fixture
def viewer(folders: Path) -> Viewer:
    return Viewer(RunList([folders], None), None)


@pytest.fixture
def run(folders: Path) -> str:
    return read(folders / "one").run


def body(reply: Any) -> Any:
    return json.loads(reply.body)


def test_runs_are_found_in_folders_and_named_where_only_the_store_knows_them(
    folders: Path, ran: Any, tmp_path: Path
) -> None:
    found = list_runs([folders]).runs
    assert list_runs(str(folders)).runs == found
    assert {Path(h.folder or "").name for h in found} == {"one", "two"}
    assert found[0].questions == 6 and found[0].mean is not None
    store = Store.open(str(ran.folder / "store"))
    [known] = RunList([tmp_path], store).listed()[0]
    assert known.folder is None and known.run == read(ran.folder / "out").run
    with pytest.raises(ConfError, match="is no folder"):
        list_runs([tmp_path / "none"])


def test_runs_are_compared_in_the_order_of_their_folders_which_may_be_above_them(folders: Path) -> None:
    one, two = (read(folders / name).run for name in ("one", "deep/two"))
    assert RunList([folders / "one", folders / "deep"], None).given() == [one, two]
    assert RunList([folders / "deep", folders / "one"], None).given() == [two, one]


def test_the_list_leads_to_each_run_and_its_questions(viewer: Viewer, run: str, folders: Path) -> None:
    page = viewer.get("/").body.decode()
    assert f'href="/run/{run}/"' in page and "Compare A with B" in page
    served = viewer.get(f"/run/{run}/")
    assert "connect-src 'self'" in served.headers["content-security-policy"]
    rows = list(each(folders / "one/results.parquet"))
    lines = [viewer.get(f"/run/{run}/question/{n}").body.decode() for n in range(len(rows))]
    assert [json.loads(line.replace("\\n", " ")) for line in lines] == [[r] for r in rows]
    assert any("\\n" in line for line in lines), "passages have the lines of their pages"
    assert f'href="/run/{run}/"' in viewer.get(f"/?t={run[:8]}+fakes").body.decode()
    assert b"0 of 2 runs" in viewer.get("/?t=other").body
    for wrong in ("/run/none/", f"/run/{run}/question/9", f"/run/{run}/question/x", "/etc/passwd"):
        with pytest.raises(DataError):
            viewer.get(wrong)


def test_two_runs_are_joined_and_the_filtered_difference_is_that_of_compare(viewer: Viewer, run: str) -> None:
    there = viewer.get(f"/pair?a={run}&b={'f' * 32}").headers["location"]
    page = viewer.get(there).body.decode()
    assert "The recipes are equal" in page and "What became of each question" in page
    found = body(viewer.post(there + "paired", {"rows": [0, 1, 2]}))
    assert (found["n"], found["difference"], found["p"]) == (3, 0, 1)
    a, b = body(viewer.get(there + "question/0"))
    assert a["id"] == b["id"] and a["hits"] == b["hits"] != []
    with pytest.raises(DataError, match="expected rows"):
        viewer.post(there + "paired", {"rows": ["a"]})
    with pytest.raises(DataError, match="no folder here has it"):
        viewer.get(f"/pair?a={run}&b=x%0d%0aSet-Cookie:%20a=b")


def test_a_mark_is_a_line_of_labels_and_keeps_how_the_answer_was_picked(
    viewer: Viewer, run: str, folders: Path
) -> None:
    rows = [r for r in each(folders / "one/results.parquet") if r["answer"] is not None]
    file = folders / "one/labels.jsonl"
    picked = {"id": rows[0]["id"], "prediction": rows[0]["answer"], "label": None, "picked": "random"}
    file.write_text(json.dumps(picked))  # its last line has no end
    for row, label in zip(rows, ("right", "wrong"), strict=False):
        assert body(viewer.post(f"/run/{run}/label", {"id": row["id"], "label": label})) == {
            "file": str(file)
        }
    assert f"{file}" in viewer.get(f"/run/{run}/").body.decode()
    found = read_labels(file)
    said = [found.by_answer[r["id"], r["answer"].strip()] for r in rows[:2]]
    assert [(s.label, s.picked) for s in said] == [("right", "random"), ("wrong", "chosen")]
    assert not found.open and '"person"' in viewer.get(f"/run/{run}/").body.decode()
    with pytest.raises(DataError):
        viewer.post(f"/run/{run}/label", {"id": "none", "label": "right"})
    with pytest.raises(DataError):
        viewer.post(f"/run/{run}/label", {"id": rows[0]["id"], "label": "maybe"})
    file.unlink()


def test_another_eval_into_the_same_folder_shows_and_marks_its_own_answers(
    folders: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(folders / "one", tmp_path / "out"))
    viewer, run, table = Viewer(RunList([out], None), None), read(out).run, out / "results.parquet"
    id = next(r["id"] for r in each(table) if r["answer"] is not None)
    viewer.get(f"/run/{run}/question/0")
    viewer.get(f"/pair/{run}/{run}/question/0")
    known = pq.read_table(table)
    answers = pa.array([f"other {i}" for i in range(known.num_rows)], known.schema.field("answer").type)
    place = known.schema.get_field_index("answer")
    other = tmp_path / "other.parquet"
    pq.write_table(known.set_column(place, known.schema.field("answer"), answers), other)
    other.replace(table)
    for path in (f"/run/{run}/question/0", f"/pair/{run}/{run}/question/0"):
        assert all(q["answer"].startswith("other") for q in body(viewer.get(path)))
    viewer.post(f"/run/{run}/label", {"id": id, "label": "right"})
    assert all(answer.startswith("other") for _, answer in read_labels(out / "labels.jsonl").by_answer)


def test_a_record_of_another_format_is_counted_and_hides_no_run(
    folders: Path, ran: Any, tmp_path: Path
) -> None:
    deep = tmp_path / "runs/store/recipe/time/repeat"
    shutil.copytree(folders / "one", deep)
    (tmp_path / "runs/store/odd").mkdir()
    (tmp_path / "runs/store/odd/run.json").write_text('{"format": 99}')
    shutil.copytree(ran.folder / "store", tmp_path / "store")
    store = Store.open(str(tmp_path / "store"))
    store.files.write(f"{RECORDS}/99999999999999-{'e' * 32}.json", b'{"format": 99}')
    runs = RunList([tmp_path / "runs"], store)
    headers, unread = runs.listed()
    assert [h.folder for h in headers] == [str(deep)] and unread == 2
    assert b"2 records of other formats are left out" in Viewer(runs, None).get("/").body


def test_transitions_and_losses_are_counted_and_each_cell_is_a_filter() -> None:
    def row(id: str, verdict: str, score: float, lost: str | None) -> dict[str, Any]:
        return {
            "id": id,
            "query": "q",
            "labels": {},
            "golds": ["x"],
            "grades": {},
            "answer": id,
            "outcome": "answered",
            "origin": "",
            "verdict": verdict,
            "reason": "",
            "measures": {"score": score},
            "hits": [],
            "quotes": [],
            "lost": lost,
        }

    pairs = [
        (row("a", "exact", 1, None), row("a", "hallucination", -1, "rerank")),
        ({**row("b", "missing", 0, "recall"), "answer": IDK}, row("b", "correct", 1, None)),
        (row("c", "exact", 1, None), row("c", "exact", 1, None)),
    ]
    lines = [paired_line(a, b, "score") for a, b in pairs]
    assert [x.facets["change"] for x in lines] == ["right to wrong", "i don't know to right", "both right"]
    assert [x.direction for x in lines] == [-2, 1, None]
    assert [x.id for x in sorted(reversed(lines), key=changed_first)] == ["a", "b", "c"]
    lost = matrix("lost", lines, "lost in A", "lost in B")
    assert lost is not None and sum(n for _, cells in lost.lines for n, _ in cells) == 3
    cells = {(a, b): cell for a, row in lost.lines for b, cell in zip(lost.columns, row, strict=True)}
    assert cells["right", "rerank"] == (1, "f=lost+in+A%3Aright&f=lost+in+B%3Arerank")
    alone = {f["name"]: f["values"] for f in facts(lines[:1], ["x", "y"], "score")["facets"]}
    assert alone["A"] == ["right"] and alone["lost in B"] == ["rerank"]  # their cells lead somewhere
    known = facts(lines, ["x", "y"], "score")
    assert known["ids"] == ["a", "b", "c"] and {f["name"] for f in known["facets"]} >= {"A", "B", "change"}


def test_another_name_and_another_page_are_refused_and_a_fault_is_said(
    viewer: Viewer, run: str, folders: Path
) -> None:
    with ViewServer(viewer, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]

        def status(method: str, path: str, headers: dict[str, str], body: str = "") -> int:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            client.request(method, path, body, headers)
            reply = client.getresponse()
            assert reply.status == 200 or "detail" in json.loads(reply.read())
            return reply.status

        own = {"host": f"127.0.0.1:{port}"}
        assert status("GET", "/", own) == 200 and status("GET", "/", {"host": "evil.example"}) == 404
        id = next(r["id"] for r in each(folders / "one/results.parquet") if r["answer"] is not None)
        mark, labels = json.dumps({"id": id, "label": "right"}), folders / "one/labels.jsonl"
        taken = {**own, "content-type": "application/json"}
        assert status("POST", f"/run/{run}/label", {**own, "content-type": "text/plain"}, mark) == 404
        odd = ("//[", f"/run/{run}/question/{'9' * 5000}", f"/run/{run}/question/%00", "/pair?a=%ff&b=")
        assert [status("GET", path, own) for path in odd] == [404] * len(odd)
        assert status("POST", f"/run/{run}/label", taken, "[" * 50_000) == 404
        foreign = {**taken, "origin": "https://evil.example"}
        assert status("POST", f"/run/{run}/label", foreign, mark) == 404 and not labels.exists()
        assert status("POST", f"/run/{run}/label", taken, mark) == 200 and labels.exists()
        labels.unlink()
        server.viewer = Viewer(RunList([folders], None), folders / "one/run.json/labels.jsonl")
        assert status("POST", f"/run/{run}/label", taken, mark) == 500
        server.shutdown()
        thread.join()
