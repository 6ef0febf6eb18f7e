"""Public questions in three kinds of file, with their fields named in three ways, are answered alike."""

import csv
import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reruns import Bench

from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.result_table import each
from raypipe.readers import RowFormat, check, looks_like
from raypipe.readers.field_map import parse

DATA = os.environ.get("RAYPIPE_DATA")
NQ = Path(DATA or ".") / "openqa/nq_gold_passage_odd.jsonl.gz"
FIELDS = "query=frage,answer=antwort.werte,id=nr,documents=belege,title=kopf,text=inhalt"


def parquet(folder, rows):
    pq.write_table(pa.Table.from_pylist(rows), folder / "nq.parquet")
    return folder / "nq.parquet", None


def comma(folder, rows):
    with (folder / "nq.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["QID", "Question", "Gold answers", "context"])
        for r in rows:
            [c] = r["ctxs"]
            out.writerow([r["id"], r["question"], json.dumps(r["answers"]), f"{c['title']}\n{c['text']}"])
    return folder / "nq.csv", None


def renamed(folder, rows):
    said = (
        {
            "nr": r["id"],
            "frage": r["question"],
            "antwort": {"werte": r["answers"]},
            "belege": [{"kopf": c["title"], "inhalt": c["text"]} for c in r["ctxs"]],
        }
        for r in rows
    )
    (folder / "nq.jsonl").write_text("\n".join(map(json.dumps, said)))
    return folder / "nq.jsonl", RowFormat(parse(FIELDS))


@pytest.mark.drill
@pytest.mark.slow
@pytest.mark.skipif(not NQ.is_file(), reason="RAYPIPE_DATA names no folder with openqa/")
def test_natural_questions_from_parquet_csv_and_renamed_json_lines_give_one_report(tmp_path):
    with gzip.open(NQ, "rt", encoding="utf-8") as lines:
        rows = [{**json.loads(next(lines)), "id": f"nq{n}"} for n in range(4)]
    for row in rows:
        del row["nq_annotated_gold"]
    found = []
    for write in (parquet, comma, renamed):
        folder = tmp_path / write.__name__
        folder.mkdir()
        path, format = write(folder, rows)
        format = format or looks_like([path])
        check([path], format)
        bench = Bench(folder, folder)
        done = evaluate(bench.pipeline(), [path], folder / "out", EvalOptions(format=format))
        results = [(r["id"], r["query"], r["golds"], r["answer"]) for r in each(done.folder.results)]
        found.append((done.record.questions, done.record.distinct_pages, done.record.without_truth, results))
    assert found[0] == found[1] == found[2]
    assert found[0][:3] == (4, 4, 0) and found[0][3][0][2][0] == "Wilhelm Conrad R\u00f6ntgen"
