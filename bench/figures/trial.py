"""A trial over documents that neither the code nor a fit has seen: the recipe `rag` next to a short script.

    python bench/figures/trial.py OUT            write documents to OUT, index, answer, score both
    python bench/figures/trial.py OUT --check    write documents and check the golds, no more

The questions were written by hand and lie in trial_questions.jsonl: `golds` are alternatives, `near` are
words that stand in the gold's passage, too, `row` says that a row of a table answers. A question without
golds has no answer here. A gold that its document does not hold any more is printed, and its question left
out.

The script searches passages of 500 characters by the same embedder and says the sentence or row of the best
passage that is closest to the question. Its threshold is chosen after the fact: it says as many answers as
raypipe did.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from bs4 import BeautifulSoup
from trial_documents import documents

from raypipe.core.textfile import json_lines
from raypipe.metrics.paired_tests import conclude, paired
from raypipe.models import catalog, load
from raypipe.readers.documents.reader import DocumentReader
from raypipe.text.page_parser import to_text

CONF = Path(__file__).parents[2] / "conf" / "models.yaml"
QUESTIONS = Path(__file__).with_name("trial_questions.jsonl")
ANSWER = 45  # words of an answer that are read: a longer one is cut there
CHUNK, OVERLAP = 500, 50  # characters of the script's passages


@dataclass(frozen=True, slots=True)
class Question:
    kind: str
    file: str  # "": none answers it
    question: str
    golds: list[str]
    near: str
    row: bool

    def stands_in(self, text: str) -> bool:
        return any(holds(text, g) for g in self.golds) and holds(text, self.near)


@dataclass(frozen=True, slots=True)
class Reply:
    answer: str  # "": nothing was said
    passages: list[tuple[str, str]]  # file and text, best first

    def right(self, q: Question) -> bool:
        read = " ".join(self.answer.split()[:ANSWER])
        return any(holds(read, g) for g in q.golds)

    def recall(self, q: Question, k: int) -> bool:
        return any(file == q.file and q.stands_in(text) for file, text in self.passages[:k])


def holds(text: str, part: str) -> bool:
    """Returns whether the words of `part` stand in `text` in a row; case and signs do not count."""
    a, b = (" ".join(re.findall(r"[^\W_]+(?:\.\d+)*", x.lower())) for x in (text, part))
    return f" {b} " in f" {a} " if b else True


def write(folder: Path) -> list[Question]:
    """Writes the documents, and returns the questions whose golds stand in them."""
    made = documents()
    for name, document in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(document.data)
    asked, kept = [Question(**row) for row in json_lines(QUESTIONS.read_text())], []
    for q in asked:
        if q.file and not (q.file in made and any(q.stands_in(line) for line in made[q.file].lines)):
            print(f"left out, {q.file} does not hold {q.golds} near {q.near!r}: {q.question}")
        else:
            kept.append(q)
    print(f"{len(made)} documents, {len(kept)} of {len(asked)} questions")
    return kept


def by_raypipe(folder: Path, questions: Sequence[Question], out: Path) -> list[Reply]:
    """Asks the recipe `rag`, without a language model, by the command."""
    rows = [{"query": q.question, "answer": q.golds or ["none"]} for q in questions]
    data = out / "questions.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    env = {**os.environ, "RAYPIPE_HOME": str(out / "home"), "OMP_NUM_THREADS": "1"}
    for args in (["--until", "index"], ["--data", str(data), "--out", str(out / "run")]):
        begin = time.monotonic()
        command = [sys.executable, "-m", "raypipe", "eval", "rag", *args, "--docs", str(folder)]
        subprocess.run(command, check=True, env=env)
        print(f"raypipe {args[0]}: {time.monotonic() - begin:.1f} s")
    of = {row["query"]: row for row in json_lines((out / "run" / "predictions.jsonl").read_text())}
    texts = read(folder, lambda content: to_text(content).text)
    replies = []
    for q in questions:
        row = of[q.question]
        places = ((h["url"].partition("#")[0], h["span"]) for h in row["hits"])
        passages = [(file, texts[file][slice(*span)]) for file, span in places]
        replies.append(Reply(row["prediction"] if row["outcome"] == "answered" else "", passages))
    return replies


def read(folder: Path, page: Callable[[str], str]) -> dict[str, str]:
    """Returns the text of each file, of an HTML page as `page` makes it."""
    reader, out = DocumentReader(), {}
    try:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            name = str(path.relative_to(folder))
            file = reader.read(name, path.read_bytes())
            out[name] = page(file.content) if file.source_kind == "page" else file.content
    finally:
        reader.close()
    return out


def rows_of_page(content: str) -> str:
    """Returns a page's text with a line for each row of a table, its cells parted by `|`."""
    page = BeautifulSoup(content, "html.parser")
    for row in page.find_all("tr"):
        row.replace_with(
            "\n" + " | ".join(c.get_text(" ", strip=True) for c in row.find_all(["td", "th"])) + "\n"
        )
    return page.get_text("\n")


def passages_of(text: str) -> list[str]:
    """Cuts at the last paragraph, line or word that a passage can hold."""
    out, start = [], 0
    while start < len(text):
        end = min(start + CHUNK, len(text))
        if end < len(text):
            cuts = (text.rfind(sign, start + CHUNK // 2, end) for sign in ("\n\n", "\n", " "))
            end = next((cut for cut in cuts if cut > 0), end)
        out.append(text[start:end])
        start = (
            end if end == len(text) else max(text.rfind(" ", start + 1, end - OVERLAP) + 1, end - 2 * OVERLAP)
        )
    return [p for p in out if p.strip()]


def sentences_of(passage: str) -> list[str]:
    """Returns rows of tables, and sentences of running text."""
    found = []
    for block in re.split(r"\n\s*\n|\n(?=.*\|)|(?<=\|)\n", passage):
        found += [block] if "|" in block else re.split(r"(?<=[.!?])\s+", block)
    return [" ".join(s.split()) for s in found if re.search(r"\w", s)]


def by_script(folder: Path, questions: Sequence[Question], answers: int) -> list[Reply]:
    """Says the sentence of the best passage that is closest, for the `answers` questions that are surest."""
    begin = time.monotonic()
    model = catalog.read(yaml.safe_load(CONF.read_text()), CONF).model("all-MiniLM-L6-v2")
    embedder = load.open_model(model, "transformers", "cpu")
    passages = [(name, p) for name, text in read(folder, rows_of_page).items() for p in passages_of(text)]
    vectors = embedder.embed([p for _, p in passages], "passage")
    print(f"script index: {time.monotonic() - begin:.1f} s, {len(passages)} passages")
    begin = time.monotonic()
    asked = embedder.embed([q.question for q in questions], "query")
    best = np.argsort(-(asked @ vectors.T), axis=1, kind="stable")[:, :10]
    found = []
    for query, order in zip(asked, best, strict=True):
        some = sentences_of(passages[order[0]][1])
        close = embedder.embed(some, "passage") @ query
        found.append((float(close.max()), some[int(close.argmax())]))
    threshold = sorted((score for score, _ in found), reverse=True)[max(answers - 1, 0)]
    print(f"script answers: {time.monotonic() - begin:.1f} s; threshold {threshold:.3f} of cosine")
    return [
        Reply(said if score >= threshold else "", [passages[i] for i in order])
        for (score, said), order in zip(found, best, strict=True)
    ]


def report(questions: Sequence[Question], ours: Sequence[Reply], theirs: Sequence[Reply]) -> Iterable[str]:
    """Yields the table, and what the pairs say."""
    kinds = {
        k: [i for i, q in enumerate(questions) if q.kind == k]
        for k in dict.fromkeys(q.kind for q in questions)
    }
    kinds["a row answers"] = [i for i, q in enumerate(questions) if q.row]
    kinds["text answers"] = [i for i, q in enumerate(questions) if q.golds and not q.row]
    kinds["no answer"] = [i for i, q in enumerate(questions) if not q.golds]
    kinds["all"] = list(range(len(questions)))
    yield "| documents | questions, with answer | | right | given | wrong of given | recall at 5 | at 10 |"
    yield "|---|---|---|---|---|---|---|---|"
    for kind, rows in kinds.items():
        golds = [i for i in rows if questions[i].golds]
        for name, replies in (("raypipe", ours), ("script", theirs)):
            given = [i for i in rows if replies[i].answer]
            right = sum(replies[i].right(questions[i]) for i in given)
            share = f"{(len(given) - right) / len(given):.2f}" if given else "-"
            recall = (sum(replies[i].recall(questions[i], k) for i in golds) for k in (5, 10))
            shown = " | ".join(f"{n / len(golds):.2f}" if golds else "-" for n in recall)
            head = f"{kind} | {len(rows)}, {len(golds)}" if name == "raypipe" else " | "
            yield f"| {head} | {name} | {right} | {len(given)} | {share} | {shown} |"
    golds = kinds["a row answers"] + kinds["text answers"]
    a, b = ([float(r[i].right(questions[i])) for i in golds] for r in (theirs, ours))
    pair = paired(a, b, 1)
    low, high = pair.interval or (float("nan"), float("nan"))
    yield (
        f"right of {pair.n} questions with an answer: script {pair.before:.3f}, raypipe {pair.after:.3f}, "
        f"difference {pair.difference:+.3f}, 95 % {low:+.3f} to {high:+.3f}, "
        f"{pair.up} up, {pair.down} down, p {pair.p:.2g}: {conclude(pair)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--check", action="store_true", help="write documents and check the golds, no more")
    args = parser.parse_args()
    out: Path = args.out.resolve()
    questions = write(out / "documents")
    if args.check:
        return
    ours = by_raypipe(out / "documents", questions, out)
    theirs = by_script(out / "documents", questions, sum(bool(r.answer) for r in ours))
    with open(out / "answers.jsonl", "w") as file:
        for q, a, b in zip(questions, ours, theirs, strict=True):
            row: dict[str, object] = {"question": q.question, "file": q.file, "golds": q.golds}
            for name, r in (("raypipe", a), ("script", b)):
                row |= {name: r.answer, f"{name}_right": r.right(q), f"{name}_recall_5": r.recall(q, 5)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print("\n".join(report(questions, ours, theirs)))


if __name__ == "__main__":
    main()
