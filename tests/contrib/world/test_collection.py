"""An invented collection: BEIR's files, the same for the same seed, with golds that words can mostly find."""

import json
import tracemalloc

import pytest

from raypipe import readers
from raypipe.contrib.world.collection import write_collection
from raypipe.core.errors import ConfError


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("papers")
    seen = []
    return folder, write_collection(folder, 1200, 40, 3, seen.append), seen


def test_every_judged_paper_is_there_and_grades_say_how_much_it_is_about_the_question(made):
    folder, summary, seen = made
    papers = {p["_id"]: p for p in rows(folder / "corpus.jsonl")}
    asked = {q["_id"]: q["text"] for q in rows(folder / "queries.jsonl")}
    judged = [line.split() for line in (folder / "qrels.trec").read_text().splitlines()]
    assert (summary.papers, summary.questions, summary.golds) == (len(papers), len(asked), len(judged))
    assert len(papers) == 1200 and len(asked) == 40 and seen[-1] == 1200
    assert {q for q, *_ in judged} == set(asked) and {p for _, _, p, _ in judged} <= set(papers)
    for question in asked:
        grades = [int(g) for q, _, _, g in judged if q == question]
        assert grades.count(2) >= 15 and set(grades) <= {1, 2}
    assert all(p["title"] and p["text"] for p in papers.values())


def test_one_paper_in_fifty_nearly_repeats_the_one_before_it(made):
    papers = rows(made[0] / "corpus.jsonl")
    revised = [i for i, p in enumerate(papers) if p["title"].endswith("(revised)")]
    assert len(revised) == 24
    assert all(papers[i]["text"].endswith(papers[i - 1]["text"][-80:]) for i in revised)


def test_the_reader_of_beir_takes_it_and_a_seed_decides_all_of_it(made, tmp_path):
    counts = readers.ReadCounts()
    read = list(readers.open([made[0]], "beir", counts))
    assert sum(r.document is not None for r in read) == 1200 and not counts.faults
    write_collection(tmp_path / "same", 1200, 40, 3)
    write_collection(tmp_path / "other", 1200, 40, 4)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels.trec"):
        assert (tmp_path / "same" / name).read_bytes() == (made[0] / name).read_bytes()
    assert (tmp_path / "other/corpus.jsonl").read_bytes() != (made[0] / "corpus.jsonl").read_bytes()


def test_memory_does_not_grow_with_the_papers(tmp_path):
    peaks = []
    for papers in (1000, 4000):
        tracemalloc.start()
        write_collection(tmp_path / str(papers), papers, 10, 3)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_more_questions_than_topics_are_refused_with_numbers(tmp_path):
    with pytest.raises(ConfError, match="--questions 5 or --papers 200"):
        write_collection(tmp_path, 100, 10, 1)
