"""Questions to fit on about man pages, READMEs and a licence that the environment brings.

    python bench/figures/manuals.py     checks that each gold stands in its document

They were written by hand, about half of them in other words than the document. None of the documents is one
of `trial_documents`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from extract_sets import Case, Page, Passages, Pool, QuestionSet, holds, plain_page
from trial_documents import man_page, readme

from raypipe.core.records import source_id
from raypipe.core.textfile import json_lines

QUESTIONS = Path(__file__).with_name("manual_questions.jsonl")
LICENCES = "GPL-3", "BSD"


def document(name: str) -> str:
    """Returns the text of a document: a man page with its section, a licence, or the README of a package."""
    if re.search(r"\.\d$", name):
        return man_page(name)
    if name in LICENCES:
        return Path("/usr/share/common-licenses", name).read_text()
    return readme(name)


def sets() -> list[QuestionSet]:
    """The questions over all documents together."""
    rows = list(json_lines(QUESTIONS.read_text()))
    pages = {name: plain_page(document(name), titled=True) for name in dict.fromkeys(r["file"] for r in rows)}
    ids = {name: source_id("document", page.text) for name, page in pages.items()}
    passages = Passages()
    pool = Pool(passages.of(ids[name], page.text) for name, page in pages.items())
    cases = (
        Case(f"manuals-{i}", r["question"], "", tuple(r["golds"]), pool.best(r["question"]), pool)
        for i, r in enumerate(rows)
    )
    return [QuestionSet("manuals", tuple(cases), {ids[name]: page for name, page in pages.items()})]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    texts: dict[str, Page] = {}
    for row in json_lines(QUESTIONS.read_text()):
        page = texts.setdefault(row["file"], plain_page(document(row["file"]), titled=True))
        if not holds(page.text, row["golds"]):
            print(f"{row['file']}: expected {row['golds']}: {row['question']}")


if __name__ == "__main__":
    main()
