"""What `iterate` and `compress` keep of the evidence of multi-hop and comparison questions.

    python bench/figures/multihop.py                          the demo's, and an invented world's of seed 7
    python bench/figures/multihop.py --questions 0            the demo's alone: too few to tell ways apart
    python bench/figures/multihop.py --questions 60 --no-demo the invented world's alone, and fewer of them
    python bench/figures/multihop.py --store DIR              keeps what models said: a stopped run is resumed

Evidence: what each call of a question's gold program gives (the person of the first hop, the birthday of the
second; both values of a comparison), as far as the question's own pages say it. Counted: how much of it is in
what a prompt shows, with the search of `rag` and the real MiniLM.

No language model takes part. Two scripts write the queries of `iterate` in its place:

- oracle: knows the gold program. It searches for the next value that the prompt does not show, by the names
  that its call takes, and stops when all are shown. No model can ask better: an upper bound;
- extract: knows nothing. It searches once, with the line of the prompt that shares most words with the
  question.

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract_sets import holds

from raypipe import readers
from raypipe.api.session import load_recipe
from raypipe.api.starting_points import DEMO
from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.graph import open_folder
from raypipe.contrib.crag.language.parser import parser
from raypipe.contrib.world.write import write
from raypipe.core import arrow
from raypipe.core.arrow import id_texts
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.llm import Chat, Sampling
from raypipe.core.protocols import Ask, Kit, Model
from raypipe.core.records import Question, parse_chunk_id
from raypipe.models.fake import Scripted, echo
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.recipes.recipe import Recipe
from raypipe.steps.compress import Compress
from raypipe.steps.fuse import Fuse
from raypipe.steps.iterate import Iterate
from raypipe.store import Store
from raypipe.store.index import MemoryIndex
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions, merge_memo
from raypipe.store.memo.memo import Memo, MemoryMemo
from raypipe.text.context import pack
from raypipe.text.moments import moment

ROOT = Path(__file__).parents[2]
CONF = Conf((ROOT / "conf",))
RECIPE = "rag-multihop"
TYPES = ("multi-hop", "comparison")
WORLD = {"pages": 20, "page_chars": 2000, "seed": 7}
MOST_VALUES = 3  # of one call
BUDGETS = (1000, 500, 250)  # tokens that a prompt shows
FEW = 5  # questions a call


@dataclass(frozen=True, slots=True)
class Hop:
    """A call of a gold program."""

    query: str  # its names and its key: what a search for its value says
    values: tuple[str, ...]  # that the question's pages say


@dataclass(frozen=True, slots=True)
class Case:
    """A question with its evidence."""

    question: Question
    type: str  # of TYPES
    hops: tuple[Hop, ...]

    def values(self) -> list[str]:
        return [v for hop in self.hops for v in hop.values]

    def recall(self, shown: str) -> float:
        """Share of its evidence in a text."""
        return sum(holds(shown, [v]) for v in self.values()) / len(self.values())


class ScriptedKit(LocalKit):
    """A kit whose language model is a script."""

    script: Any = staticmethod(lambda *_: "Enough")

    def generator(self, model: Model) -> Any:
        return Scripted(self.script, max_model_len=1_000_000).generate


def oracle(cases: Sequence[Case]) -> Any:
    """Writes the query for the first value that the prompt does not show."""
    of = {c.question.text: c for c in cases}

    def script(chat: Chat, sampling: Sampling, adapter: str | None) -> str:
        text = chat[-1].content
        case = of[re.findall(r"^Question: (.*)$", text, re.MULTILINE)[-1]]
        context = text.rpartition("\nQuestion: ")[0].partition("\nSearched so far:")[0]
        for hop in case.hops:
            if any(not holds(context, [v]) for v in hop.values):
                return f"Search: {hop.query}"
        return "Enough"

    return script


def extract(chat: Chat, sampling: Sampling, adapter: str | None) -> str:
    """Writes the line of the evidence that is most like the question, once."""
    text = chat[-1].content
    if "Searched so far:" in text:
        return "Enough"
    question = re.findall(r"^Question: .*$", text, re.MULTILINE)[-1]
    best = echo(
        (replace(chat[-1], content=f"{text.partition('Question: ')[0]}\n{question}"),), sampling, None
    )
    return f"Search: {best[:250]}"


async def hops(row: Mapping[str, Any], pages: str, graph: Any, parse: Any) -> tuple[Hop, ...]:
    """The calls of a line's gold program with the values that its pages say."""
    found, before = [], ""
    for r in await run(parse(row["kg_program"]), graph, moment(row["query_time"]), row["domain"]):
        values = [str(v) for v in r.values[:MOST_VALUES] if not isinstance(v, bool)]
        names = " ".join(re.findall(r'"([^"]+)"', r.call)).replace("_", " ")
        star = before if "*" in r.call else ""
        if said := tuple(v for v in values if holds(pages, [v])):
            found.append(Hop(f"{star} {names}".strip(), said))
        before = values[0] if values else ""
    return tuple(found)


async def few_at_once(ask: Ask, questions: Sequence[Question]) -> list[Question]:
    """The questions through a step or a recipe: a few a call, so that a stopped run loses few."""
    return [q for i in range(0, len(questions), FEW) for q in await ask(list(questions[i : i + FEW]))]


async def cases_of(folder: Path, kit: Kit) -> tuple[list[Case], Any, int]:
    """Questions with evidence, the corpus half over their pages, and how many questions there were."""
    grammar = (ROOT / "conf/grammar/calls.lark").read_text(encoding="utf-8")
    graph, parse = open_folder(folder / "kg"), parser(grammar)
    lines = [json.loads(x) for f in sorted(folder.glob("*.jsonl")) for x in f.open(encoding="utf-8")]
    by_id = {x["interaction_id"]: x for x in lines if x["question_type"] in TYPES and x["kg_program"]}
    rows = list(readers.open([folder], "synth", readers.ReadCounts()))
    questions = [r.question for r in rows if r.question is not None and r.question.id in by_id]
    cited = {s for q in questions for s in q.sources() or ()}
    seen: set[str] = set()
    sources = [s for r in rows for s in readers.unseen(r.sources, seen) if s.id in cited]
    recipe = load_recipe(RECIPE, None, CONF)
    for i in range(0, len(sources), 10 * FEW):
        await CorpusExecutor(recipe, kit)(arrow.corpus_table(sources[i : i + 10 * FEW]))
    corpus = await CorpusExecutor(recipe, kit)(arrow.corpus_table(sources))
    texts = dict(zip(id_texts(corpus.texts["source"]), corpus.texts["text"].to_pylist(), strict=True))
    cases = []
    for q in questions:
        pages = "\n".join(texts.get(s, "") for s in q.sources() or ())
        found = await hops(by_id[q.id], pages, graph, parse)
        if found:
            cases.append(Case(q, by_id[q.id]["question_type"], found))
    return cases, corpus, len(questions)


async def measured(folder: Path, memo: Memo) -> dict[str, Any]:
    """Recall of evidence in what is shown, by way and by budget."""
    cases, corpus, count = await cases_of(folder, cached(LocalKit(None, "transformers"), memo, CallCounts()))
    recipe = load_recipe(RECIPE, None, CONF)
    vectors = {model_identity(m): corpus.vectors[m.name] for m in recipe.embedders()}
    own = ScriptedKit(MemoryIndex(corpus.texts, corpus.passages, vectors), "transformers")
    kit = cached(own, memo, CallCounts())  # all ways and budgets score much the same sentences
    at = next(i for i, s in enumerate(recipe.question) if isinstance(s.step, Iterate))
    rank = QuestionExecutor(replace(recipe, question=recipe.question[:at]), kit)
    ranked = await few_at_once(rank, [c.question for c in cases])
    ways = {"search": ranked}
    counts: dict[str, Any] = {}
    for name, script in (("extract", extract), ("oracle", oracle(cases))):
        own.script = script
        ways[name], counts[name] = await searched_again(recipe, kit, ranked, name)
    out: dict[str, Any] = {
        "questions": {t: sum(c.type == t for c in cases) for t in TYPES},
        "without_evidence_on_pages": count - len(cases),
        "rounds": counts,
        "recall": {},
    }
    for name, questions in ways.items():
        out["recall"][name] = await shown(recipe, kit, cases, questions)
    await own.close()
    return out


async def searched_again(
    recipe: Recipe, kit: Kit, ranked: Sequence[Question], script: str
) -> tuple[list[Question], dict[str, Any]]:
    """The questions after `iterate` and the fusion of its searches. `script`: the name of who writes them."""
    iterate = next(s.step for s in recipe.question if isinstance(s.step, Iterate))
    fuse = next(s.step for s in recipe.question if isinstance(s.step, Fuse) and s.step.into == "merged")
    model = Model(script, "generator", "scripted", "", "", "", f"{script}@1", max_model_len=1_000_000)
    rows = await few_at_once(replace(iterate, model=model).open(kit), ranked)
    said = [json.loads(q.replies["stop"].text) for q in rows]
    labels = [q.replies["stop"].label for q in rows]
    counts = {
        "replies": sum(s["rounds"] for s in said),
        "searches": sum(s["searches"] for s in said),
        "ended": {x: labels.count(x) for x in dict.fromkeys(labels)},
    }
    return await fuse.open(kit)(rows), counts


async def shown(
    recipe: Recipe, kit: Kit, cases: Sequence[Case], questions: Sequence[Question]
) -> dict[str, Any]:
    """Mean recall, and tokens: of ten passages, of a beginning of them, and of what `compress` keeps."""
    compress = next(s.step for s in recipe.question if isinstance(s.step, Compress))
    tokenize = kit.tokenizer(compress.tokenizer)

    async def texts(some: Sequence[Question]) -> list[list[str]]:
        return [await kit.index().texts(q.order) for q in some]

    def told(packed: Sequence[str]) -> dict[str, Any]:
        recalls = [c.recall(p) for c, p in zip(cases, packed, strict=True)]
        by = {t: [r for c, r in zip(cases, recalls, strict=True) if c.type == t] for t in TYPES}
        means = {t: round(sum(v) / len(v), 3) for t, v in by.items() if v}
        whole = round(sum(r == 1 for r in recalls) / len(recalls), 3)
        return {
            **means,
            "all_of_it": whole,
            "tokens": round(sum(len(tokenize(p)) for p in packed) / len(packed)),
        }

    passages = [t[:10] for t in await texts(questions)]
    out = {"ten_passages": told([pack(p, "docs", None, tokenize).text for p in passages])}
    asked = [q if "more" in q.replies else replace(q, replies=_none(q)) for q in questions]
    for budget in BUDGETS:
        out[f"beginning_{budget}"] = told([pack(p, "docs", budget, tokenize).text for p in passages])
        cut = await few_at_once(replace(compress, tokens=budget).open(kit), asked)
        assert all(parse_chunk_id(c) for q in cut for c in q.order)
        out[f"compressed_{budget}"] = told([pack(p, "docs", None, tokenize).text for p in await texts(cut)])
    return out


def _none(question: Question) -> dict[str, Any]:
    from raypipe.core.records import SKIPPED_REPLY

    return {**question.replies, "more": SKIPPED_REPLY}


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--questions", type=int, default=200, metavar="N", help="of the world of seed 7 (200)")
    args.add_argument("--store", metavar="DIR", help="keeps what models said (default: forgets it)")
    args.add_argument("--no-demo", action="store_true", help="without the demo's questions")
    given = args.parse_args()
    sets = {} if given.no_demo else {"demo": DEMO}
    if given.questions:
        sets["synth"] = {**WORLD, "questions": given.questions}
    memo: Memo = MemoryMemo()
    if given.store:
        store = Store.create(given.store)
        merge_memo(store)
        memo = StoreMemo(store.uri, memo_versions(store))
    found = {}
    for name, world in sets.items():
        with tempfile.TemporaryDirectory(prefix="raypipe-multihop-") as folder:
            write(
                Path(folder),
                world["questions"],
                pages=world["pages"],
                seed=world["seed"],
                page_chars=world["page_chars"],
            )
            found[name] = asyncio.run(measured(Path(folder), memo))
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
