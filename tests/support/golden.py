"""Fixed rows for every step, run through a chain of all steps with fakes that compute.

`python tests/support/golden.py` writes conf/steps.lock from what the steps put out now.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from checkout import ROOT, SUPPORT

from raypipe.contrib.crag.graph_adapter import tables_version
from raypipe.contrib.crag.language.example_bank import ExampleBank, ExampleGroup
from raypipe.contrib.crag.public_data import facts_version
from raypipe.contrib.crag.references import FactsRef, GraphRef
from raypipe.contrib.crag.steps.demote import Demote
from raypipe.contrib.crag.steps.facts import Facts, FactsRule
from raypipe.contrib.crag.steps.function_calls import FunctionCalls
from raypipe.contrib.crag.steps.kg_query import KgQuery
from raypipe.contrib.crag.steps.match_calls import MatchCalls
from raypipe.core import arrow
from raypipe.core.digests import model_identity
from raypipe.core.records import (
    ABSTAINED,
    ANSWERED,
    IDK,
    SKIPPED_REPLY,
    Question,
    Reply,
    Source,
    Turn,
    source_id,
)
from raypipe.models.kit import LocalKit
from raypipe.recipes.check import (
    HASH,
    OVERLAP,
    SCRIPTED,
    WHITESPACE,
    output_digest,
    questions,
    sources,
)
from raypipe.recipes.executor import fine, with_texts
from raypipe.recipes.laws import Trial, run
from raypipe.recipes.wiring import CORPUS_STEPS, QUESTION_STEPS, STEPS
from raypipe.steps.bm25 import Bm25, Tokenize
from raypipe.steps.compress import Compress
from raypipe.steps.decide import Decide
from raypipe.steps.dense import Dense, Similarity
from raypipe.steps.embed import Embed, EmbedContextual, EmbedDocument
from raypipe.steps.examples import Examples
from raypipe.steps.extract import Extract
from raypipe.steps.fuse import Fuse
from raypipe.steps.generate import Generate
from raypipe.steps.iterate import Iterate
from raypipe.steps.parse import Clean, Parse
from raypipe.steps.rerank import Listwise, Rerank, Shortlist
from raypipe.steps.split import Split
from raypipe.steps.stand_alone import StandAlone
from raypipe.store.index import MemoryIndex
from raypipe.text.evidence import Fitted, FittedOn
from raypipe.text.template import ByLabel, Prompt


def _file_digest(cls: type) -> str:
    return hashlib.blake2b(Path(inspect.getfile(cls)).read_bytes(), digest_size=8).hexdigest()


LOCK = ROOT / "conf/steps.lock"

GRAMMAR = (ROOT / "conf/grammar/calls.lark").read_text(encoding="utf-8")
FOLDER = SUPPORT / "goldgraph"
GRAPH = GraphRef("golden", str(FOLDER), tables_version(FOLDER), "folder", GRAMMAR)
PUBLIC = FactsRef("golden", str(FOLDER / "public.parquet"), facts_version(FOLDER / "public.parquet"))
DIRECTED = 'get_movie_person_crew({movie}, None, eq(job, "Director"))["name"]'
BANK = ExampleBank(
    (
        ExampleGroup("movie", DIRECTED, ("who directed {movie}?", "who was the director of {movie}?")),
        ExampleGroup(
            "finance", "get_stock_price({company}, monday)[close]", ("the price of {company} on monday?",)
        ),
        ExampleGroup("open", "None", ("how many games did they win in {year}?",)),
    )
)

PROMPT_READS = ("context", "asked_at", "text", "words")
NEXT_READS = ("context", "text", "queries")
ABSTAINED_READS = ("context", "replies.extract", "text")

# The fields of each step; one that is not here is checked with its defaults.
CORPUS: Mapping[str, Any] = {
    "parse": Parse(kinds=("page", "snippet")),
    "tokenize": Tokenize(words="stems"),
    "split": Split(child_chars=80, child_overlap=20, parent_chars=200, parent_overlap=40),
    "embed": Embed(model=HASH),
    "clean": Clean(),
    "embed_document": EmbedDocument(model=HASH, passage="Title: {{ title | colon }} {{ abstract }}"),
    "embed_contextual": EmbedContextual(
        model=HASH,
        writer=SCRIPTED,
        prompt=Prompt("{{ document }}\n{{ passage }}", "", ("document", "passage")),
        document_chars=120,
    ),
}
DOCUMENTS = (
    "Velora\n<p>A film of\n1994, see http://velora.com</p>",
    "\nNo title",
    "Title alone",
    "<b></b>\n ",
)
QUESTION: Mapping[str, Any] = {
    "match_calls": MatchCalls(graph=GRAPH, bank=BANK, embedder=HASH, least=0.3),
    "function_calls": FunctionCalls(reply="web", into="calls2", rule="rule2"),
    "kg_query": KgQuery(
        graph=GRAPH,
        calls="calls",
        rule="rule",
        answer="kg",
        certain=ByLabel(("exact",), "domain"),
        domain="domain",
        trace="trace",
    ),
    "demote": Demote(reply="said", facts="games", recent=("win", "late")),
    "facts": Facts(
        table=ByLabel(
            FactsRule(table=PUBLIC, by="year", triggers=("won", "win")),
            "domain",
            {"movie": FactsRule(table=PUBLIC, by="name")},
        ),
        into="public",
        entities="kg",
        model=OVERLAP,
        top=2,
    ),
    "examples": Examples(bank=BANK, embedder=HASH, top=2),
    "shortlist": Shortlist(model=OVERLAP, pages=2),
    "dense": Dense(model=HASH, top=20),
    "bm25": Bm25(words="stems", variant="okapi", top=10),
    "similarity": Similarity(model=HASH, query="about {{ text }}"),
    "fuse": Fuse(weights={"dense": 0.5, "bm25": 0.5}, missing="min", top=8),
    "rerank": Rerank(model=OVERLAP, candidates=6, top=4),
    "extract": Extract(
        embedder=HASH,
        fitted=Fitted("", -0.5, {"overlap": 2.0, "around": 0.5}, 0.9, FittedOn("golden", "all", "none")),
    ),
    "generate": Generate(
        model=SCRIPTED,
        prompt=ByLabel(
            Prompt("{{ context }}{{ asked_at }}\n{{ text }}", "At most {{ words }} words.", PROMPT_READS),
            "extract",
            {"abstained": Prompt("{{ context }}{{ replies.extract }}\n{{ text }}", "", ABSTAINED_READS)},
        ),
        adapter=ByLabel(None, "extract", {"abstained": "careful"}),
        fill={"words": 70},
        context_tokens=60,
        passages=3,
        lower=True,
        max_tokens=20,
        into="web",
    ),
    "decide": Decide(prefer=("extract",)),
    # The fake repeats a line of the prompt, which drops words of the question: the rule writes the question.
    "stand_alone": StandAlone(
        model=SCRIPTED, prompt=Prompt("{{ turns }}\nRewrite {{ text }}", "", ("turns", "text"))
    ),
    "iterate": Iterate(
        model=SCRIPTED,
        # The fake repeats the line that is most like the last one: a query, then the same again.
        prompt=Prompt("{{ context }}\nSearch: {{ text }} film\n{{ queries }}\n{{ text }}", "", NEXT_READS),
        rounds=3,
        tokens=400,
        context_tokens=60,
        max_tokens=20,
        embedder=HASH,
        words="stems",
        top=5,
        passages=2,
        tokenizer=WHITESPACE,
    ),
    "compress": Compress(
        tokens=30,
        tokenizer=WHITESPACE,
        scored=8,
        embedder=HASH,
        query="{{ text }} {{ replies.iterate }}",
    ),
    # The fake repeats a passage's line: its number, and those in its text.
    "listwise": Listwise(
        model=SCRIPTED, prompt=Prompt("{{ passages }}\n{{ text }}", "", ("passages", "text")), top=3
    ),
}


def heard(rows: list[Question]) -> list[Question]:
    """The rows with what a language model says of a graph's facts. `demote` is about the first three: a
    question that is called invalid, one whose games were none, and an answer that stays."""
    replies = [
        ("The premise is Invalid.", "Velora is a film."),
        ("They won 31 games.", "There is no match of Brask Rovers."),
        ("41.2", "There is no match of Tarn Holdings."),
    ]
    given = [(Reply(s, ANSWERED), Reply(f, ANSWERED)) for s, f in replies]
    given += [(SKIPPED_REPLY, Reply(IDK, ABSTAINED))] * (len(rows) - len(given))
    return [
        replace(q, replies={**q.replies, "said": said, "games": games})
        for q, (said, games) in zip(rows, given, strict=True)
    ]


def talked(rows: list[Question]) -> list[Question]:
    """The rows as last turns: one that leans on those before it, one that stands alone, others without."""
    said = (Turn("user", "who directed Velora?"), Turn("assistant", "Anna Lindqvist"))
    return [
        replace(rows[0], text="who wrote its music?", turns=said),
        replace(rows[1], turns=said),
        *rows[2:],
    ]


def in_order(steps: Mapping[str, type[Any]]) -> list[tuple[str, type[Any]]]:
    """Verbs with their classes in the order of steps.lock, new ones last: a step gets what those before it
    made."""
    kept = list(yaml.safe_load(LOCK.read_text()))
    return sorted(steps.items(), key=lambda of: kept.index(of[0]) if of[0] in kept else len(kept))


def chain() -> dict[str, Trial]:
    """Every step of the table over the golden rows."""
    links: dict[str, Trial] = {}
    kit = LocalKit(None, clock=lambda: 0.0)  # a trace says how long a call took
    table = chunks = arrow.corpus_table(sources())
    documents = arrow.corpus_table([Source(source_id("document", d), "document", d) for d in DOCUMENTS])
    for verb, cls in in_order(CORPUS_STEPS):
        step = CORPUS.get(verb) or cls()
        given = {"clean": documents, "embed_document": chunks}.get(verb, table)
        if verb == "embed_contextual":
            given = with_texts(links["split"].out, links["tokenize"].out)
        links[verb] = Trial(step, kit, given, run(step, kit, given))
        if verb not in ("clean", "embed_contextual"):  # other ways to begin and to embed
            chunks, table = table, links[verb].out
    index = MemoryIndex(
        fine(links["tokenize"].out),
        fine(links["split"].out),
        {model_identity(HASH): fine(links["embed"].out)},
    )
    kit = kit.with_index(index)
    rows = questions()
    for verb, cls in in_order(QUESTION_STEPS):
        step = QUESTION.get(verb) or cls()
        rows = {"demote": heard, "stand_alone": talked}.get(verb, list)(rows)
        links[verb] = Trial(step, kit, rows, run(step, kit, rows))
        rows = links[verb].out
    return links


def locked() -> dict[str, dict[str, Any]]:
    """What steps.lock should say now."""
    links = chain()
    return {
        verb: {"version": cls.version, "output": output_digest(links[verb].out), "file": _file_digest(cls)}
        for verb, cls in in_order(STEPS)
    }


def write_lock() -> None:
    head = "# step -> version, digest of what it puts out on fixed rows with fakes, digest of its file.\n"
    head += "# Written by `python tests/support/golden.py`; held by tests/laws/test_lock.py.\n"
    LOCK.write_text(head + yaml.safe_dump(locked(), sort_keys=False))


if __name__ == "__main__":
    write_lock()
    sys.stdout.write(f"wrote {LOCK}\n")
