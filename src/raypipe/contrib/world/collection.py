"""An invented collection of papers: titles, abstracts, questions and graded golds, in BEIR's files.

corpus.jsonl     one paper a line: _id, title, text
queries.jsonl    one question a line: _id, text
qrels.trec       grade 2: the paper is about the question's topic; 1: it mentions the topic in passing

Each paper is about one topic and mentions another. A topic is a method and an object of study, both with
invented names. Three papers in five repeat these names. The others write them once, among words of the
mentioned topic, so words do not find all papers. Every fiftieth paper nearly duplicates the one before. Each
paper depends only on the seed and its number, so memory does not grow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from raypipe.contrib.world.world.names import pick, word, wording, words
from raypipe.core.errors import ConfError

FILES = ("corpus.jsonl", "queries.jsonl", "qrels.trec")
PER_TOPIC = 20  # papers about one topic
DUPLICATES = 50  # every fiftieth paper nearly repeats its predecessor
FIELDS = words("sediments membranes markets grammars alloys forests circuits vaccines glaciers archives")
GOALS = words("stability accuracy cost yield latency diversity safety retention fairness drift")
VERBS = words("improves predicts measures explains reduces compares maps tracks models bounds")


@dataclass(frozen=True, slots=True)
class CollectionSummary:
    folder: Path
    papers: int
    questions: int
    golds: int  # judged papers of all questions
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Paper:
    id: str
    title: str
    text: str
    about: int  # number of its topic
    mentions: int  # number of the topic that it mentions


def write_collection(
    folder: Path, papers: int, questions: int, seed: int, advance: Callable[[int], object] = lambda done: None
) -> CollectionSummary:
    """Writes a collection to a folder. `advance` receives the number of papers written so far. Raises
    ConfError if there are more questions than topics."""
    topics = _topics(papers)
    if questions > topics:
        advice = f"say --questions {topics} or --papers {questions * PER_TOPIC}"
        expected = f"expected at most one question for {PER_TOPIC} papers"
        raise ConfError(f"{expected}, found {questions} for {papers}: {advice}")
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    asked = {i * topics // questions: i for i in range(questions)}  # topic -> question
    golds = 0
    with (
        open(folder / FILES[0], "w", encoding="utf-8") as corpus,
        open(folder / FILES[2], "w", encoding="utf-8") as qrels,
    ):
        for done, paper in enumerate(_papers(papers, seed), 1):
            row = {"_id": paper.id, "title": paper.title, "text": paper.text}
            corpus.write(json.dumps(row, ensure_ascii=False) + "\n")
            for topic, grade in ((paper.about, 2), (paper.mentions, 1)):
                if topic in asked:
                    qrels.write(f"q{asked[topic]} 0 {paper.id} {grade}\n")
                    golds += 1
            if done % 1000 == 0 or done == papers:
                advance(done)
    patterns = wording("papers")["asked"]
    with open(folder / FILES[1], "w", encoding="utf-8") as queries:
        for topic, i in asked.items():
            text = patterns[i % len(patterns)].format(**_topic(seed, topic))
            queries.write(json.dumps({"_id": f"q{i}", "text": text}, ensure_ascii=False) + "\n")
    size = sum((folder / name).stat().st_size for name in FILES)
    return CollectionSummary(folder, papers, len(asked), golds, size, time.perf_counter() - start)


def _topics(papers: int) -> int:
    return max(2, papers // PER_TOPIC)


def _papers(count: int, seed: int) -> Iterator[Paper]:
    topics = _topics(count)
    before: Paper | None = None
    for i in range(count):
        if before is not None and i % DUPLICATES == DUPLICATES - 1:
            text = before.text.replace("We report", "In this revision we report", 1)
            paper = Paper(f"p{i}", f"{before.title} (revised)", text, before.about, before.mentions)
        else:
            paper = _paper(i, seed, topics)
        yield paper
        before = paper


def _paper(number: int, seed: int, topics: int) -> Paper:
    rng = Random(f"paper {seed} {number}")
    about = number % topics
    mentions = (about + 1 + int(rng.random() * (topics - 1))) % topics
    main, side = _topic(seed, about), _topic(seed, mentions)
    whole = rng.random() < 0.6  # else one sentence names the method; most use the side topic's words
    said = wording("papers")
    lines = [_filled(rng, pick(rng, said["about"]), main)]
    for _ in range(4 + int(rng.random() * 5)):
        lines.append(_filled(rng, pick(rng, said["common"]), main if whole else side))
    lines.append("Related work uses {a} for {b} {f}.".format(**side))
    if whole:
        lines.append(_filled(rng, pick(rng, said["about"]), main))
    title = "{a} and the {g} of {b} {f}" if whole else "On the {g} of {f}"
    return Paper(f"p{number}", title.format(**main), " ".join(lines), about, mentions)


def _filled(rng: Random, pattern: str, topic: Mapping[str, str]) -> str:
    return pattern.format(**topic, v=pick(rng, VERBS), n=2 + int(rng.random() * 900))


def _topic(seed: int, number: int) -> dict[str, str]:
    """Returns a topic: its method `a`, object of study `b`, field `f` and goal `g`."""
    rng = Random(f"topic {seed} {number}")
    method = f"{word(rng, 2)} {pick(rng, ('sampling', 'search', 'regression', 'encoding', 'assay'))}"
    return {"a": method, "b": word(rng, 3), "f": pick(rng, FIELDS), "g": pick(rng, GOALS)}
