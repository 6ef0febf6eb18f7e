"""Small files of the data that recipes were published for: CRAG's, QASPER's and OAG-QA's, by their names."""

import bz2
import io
import json
import tarfile
from pathlib import Path

from raypipe.contrib.world.collection import write_collection
from raypipe.readers import download

QUESTION = "Which corpora do they use for training?"


def crag(world, folder, task):
    """An invented world as the files that `raypipe download crag` leaves."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    lines, files = (world / "questions.jsonl").read_bytes(), download.CRAG[task, "v4"]
    if task == "1":
        packed = bz2.compress(lines)
    else:
        tree = io.BytesIO()
        with tarfile.open(fileobj=tree, mode="w:bz2") as tar:
            member = tarfile.TarInfo("crag_task_3_dev_v4/questions.jsonl")
            member.size = len(lines)
            tar.addfile(member, io.BytesIO(lines))
        packed = tree.getvalue()
    size = -(-len(packed) // len(files))
    for n, file in enumerate(files):
        (folder / file.name).write_bytes(packed[n * size : (n + 1) * size])


def paper(id):
    said = {"extractive_spans": [f"corpus {id}"], "evidence": [f"They train on corpus {id}."]}
    qas = [
        {"question": QUESTION, "answers": [{"answer": said}]},
        {"question": f"Is paper {id} long?", "answers": [{"answer": {"yes_no": True}}]},
    ]
    qas = [{**qa, "question_id": f"{id}-{n}"} for n, qa in enumerate(qas)]
    words = " ".join(f"Sentence {n} of paper {id} says nothing of it." for n in range(40))
    sections = [{"section_name": "Data", "paragraphs": [words, f"They train on corpus {id}.", words]}]
    return {"title": f"Paper {id}", "abstract": f"On {id}.", "full_text": sections, "qas": qas}


def qasper(folder):
    """Invented papers as the files that `raypipe download qasper` leaves: two each, eight to train on."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    for name in download.QASPER_FILES:
        papers = {f"{name[7]}{n}": paper(f"{name[7]}{n}") for n in range(8 if "train" in name else 2)}
        (folder / name).write_text(json.dumps(papers))


def oag(folder, papers, questions):
    """The invented collection in the files of OAG-QA, each question with a body in HTML."""
    write_collection(folder / "beir", papers, questions, seed=5)
    lines = {
        n: [json.loads(line) for line in (folder / f"beir/{n}.jsonl").open(encoding="utf-8")]
        for n in ("corpus", "queries")
    }
    golds: dict[str, list[str]] = {}
    for line in (folder / "beir/qrels.trec").read_text().splitlines():
        query, _, paper, _ = line.split()
        golds.setdefault(query, []).append(paper)
    data = folder / "oag"
    data.mkdir()
    pids = {p["_id"]: {"title": p["title"], "abstract": f"<p>{p['text']}</p>"} for p in lines["corpus"]}
    (data / "pid-to-title-abs-new.json").write_text(json.dumps(pids))
    asked = [
        {"question": q["text"], "body": f"<p>I ask:\n{q['text']}</p> http://a.com", "pids": golds[q["_id"]]}
        for q in lines["queries"]
    ]
    (data / "qa-train.txt").write_text("".join(json.dumps(a) + "\n" for a in asked))
    return data
