#!/usr/bin/env python3
"""The same answers by three ways: `raypipe eval`, a plain Ray Data script, one process.

    python bench/figures/planes.py --questions 40 --pages 10 --rounds 3 --out planes.json

Each way parses, splits and embeds the pages of invented questions, ranks passages and asks a language model
through vLLM, from a cold start and an empty store, with equal settings of the engine:

- `plane`: `raypipe eval` on two cores, with its store, plan, memo, commits and report;
- `data`: a script of Ray Data, ranking in an actor pool, generating with `ray.data.llm`; stores nothing;
- `process`: the recipe in one process with vLLM next to it, all questions as one batch; stores nothing.

Models are stand-ins, so that the engine's start and the planes themselves are what differs. A round is each
way once, in a process of its own. Prints one JSON object: wall and CPU seconds of each way, and how many
replies are not equal; exit code 1 where there are any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psutil

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.llm import Chat, Generated, Sampling
from raypipe.core.protocols import ForwardingKit, Model
from raypipe.core.records import Question, Source
from raypipe.core.textfile import json_lines
from raypipe.models.hosts import EngineLimits
from raypipe.models.kit import LocalKit
from raypipe.readers import ReadCounts
from raypipe.readers import open as open_rows
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import decides
from raypipe.store.index import MemoryIndex

ROOT = Path(__file__).parents[2]
WAYS = ("plane", "data", "process")
PER_BLOCK = 10  # questions, as laptop.yaml has them in a task
EVERY_S = 0.5  # between two looks at CPU seconds
LIMITS = EngineLimits(device="cpu", kv_cache_gib=1, max_num_seqs=32)  # as laptop.yaml has them

RECIPE = """
about: passages by vectors and a language model's answer
corpus:
  - parse: {html: lxml, via: fast, kinds: [page]}
  - split: {child_chars: 700, child_overlap: 100}
  - embed: {model: all-MiniLM-L6-v2}
question:
  - dense: {model: all-MiniLM-L6-v2, top: 50}
  - fuse: {weights: {dense: 1.0}, top: 50}
  - rerank: {model: minilm-maxsim, top: 10}
  - generate:
      model: llama-3-8b
      prompt:
        variables: [context, text]
        system: Answer from the pages.
        user: "{{ context }}\\nQuestion: {{ text }}"
      into: web
      reply: text
      passages: 5
      context_chars: 3000
      max_tokens: 40
  - decide: {prefer: [web]}
"""

Row = tuple[Question, list[Source]]


def rows_of(folder: Path) -> list[Row]:
    """The questions, each with its pages."""
    opened = open_rows(sorted((folder / "world").glob("questions*.jsonl")), "crag", ReadCounts())
    return [(row.question, list(row.sources)) for row in opened if row.question is not None]


def recipe_of(folder: Path) -> Recipe:
    (folder / "planes.yaml").write_text(RECIPE)
    models = str(folder / "standins" / "models.yaml")
    return load_recipe(str(folder / "planes.yaml"), models, Conf((ROOT / "conf",)))


async def ranked(recipe: Recipe, rows: Sequence[Row], kit: LocalKit) -> tuple[MemoryIndex, list[Question]]:
    """The pages of some questions searched: their index, and the questions."""
    pages = list({s.id: s for _, sources in rows for s in sources if s.kind == "page"}.values())
    made = await CorpusExecutor(recipe, kit)(arrow.corpus_table(pages))
    vectors = {model_identity(m): made.vectors[m.name] for m in recipe.embedders()}
    return MemoryIndex(made.texts, made.passages, vectors), [q for q, _ in rows]


class AskedKit(ForwardingKit[Any]):
    """A kit whose language model only notes what it is asked."""

    def __init__(self, kit: Any) -> None:
        super().__init__(kit)
        self.chats: list[Chat] = []

    def generator(self, model: Model) -> Any:
        async def note(chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None) -> Any:
            self.chats += chats
            return [Generated("noted", "stop", 0, 0, 1) for _ in chats]

        return note


def process(folder: Path) -> dict[str, str]:
    """One process."""
    recipe, rows = recipe_of(folder), rows_of(folder)

    async def answered() -> list[Question]:
        async with LocalKit(None, "transformers", "cpu", engine_limits=LIMITS) as kit:
            index, questions = await ranked(recipe, rows, kit)
            return await QuestionExecutor(recipe, kit.with_index(index))(questions)

    return {q.id: q.answer for q in asyncio.run(answered())}


def data(folder: Path) -> dict[str, str]:
    """A script of Ray Data."""
    import ray
    from ray.data import ActorPoolStrategy
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    from raypipe.models.vllm_terms import arguments

    recipe, rows = recipe_of(folder), rows_of(folder)
    [model] = [m for m in recipe.models() if m.kind == "generator"]
    [generate] = [cast(Any, s.step) for s in recipe.question if s.verb == "generate"]
    asking = replace(recipe, question=tuple(s for s in recipe.question if not decides(s.step)))

    class Rank:
        def __init__(self) -> None:
            self._kit, self._loop = LocalKit(None, "transformers", "cpu", 1), asyncio.Runner()

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            return self._loop.run(self._chats([rows[i] for i in batch["item"]]))

        async def _chats(self, some: list[Row]) -> dict[str, Any]:
            index, questions = await ranked(asking, some, self._kit)
            kit = AskedKit(self._kit.with_index(index))
            await QuestionExecutor(asking, kit)(questions)
            chats = [json.dumps([[m.role, m.content] for m in chat]) for chat in kit.chats]
            return {"id": [q.id for q in questions], "chat": chats}

    def asked(row: dict[str, Any]) -> dict[str, Any]:
        messages = [{"role": role, "content": content} for role, content in json.loads(row["chat"])]
        sampling = {"max_tokens": generate.max_tokens, "temperature": 0.0, "top_p": 1.0}
        return {
            "id": row["id"],
            "messages": messages,
            "sampling_params": sampling,
            "tokenization_kwargs": {"add_special_tokens": False},
        }

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    engine = arguments(model, LIMITS)
    config = vLLMEngineProcessorConfig(
        model_source=engine.pop("model"),
        engine_kwargs=engine,
        concurrency=1,
        batch_size=PER_BLOCK,
        chat_template_stage={"enabled": True, "num_cpus": 0.1},
        tokenize_stage={"enabled": False},
        detokenize_stage={"enabled": False},
        placement_group_config={"bundles": [{"CPU": 0.5}]},
        log_engine_metrics=False,
    )
    generating = build_processor(config, preprocess=asked, postprocess=lambda row: dict(row))
    items = ray.data.from_items(list(range(len(rows))), override_num_blocks=-(-len(rows) // PER_BLOCK))
    chats = items.map_batches(Rank, batch_size=PER_BLOCK, num_cpus=1, compute=ActorPoolStrategy(size=1))
    replies = {row["id"]: row["generated_text"].strip() for row in generating(chats).take_all()}
    ray.shutdown()
    return replies


def plane(folder: Path) -> dict[str, str]:
    """`raypipe eval`, with a store of its own."""
    recipe_of(folder)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        command = [sys.executable, "-m", "raypipe", "eval", str(folder / "planes.yaml"), "--data"]
        command += [str(folder / "world"), "--models", str(folder / "standins" / "models.yaml")]
        command += ["--store", f"{made}/store", "--out", f"{made}/out", "--cluster", "laptop", "--json"]
        env = {**os.environ, "RAYPIPE_CONF": str(ROOT / "conf"), "RAY_ADDRESS": "local"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        lines = json_lines((Path(made) / "out" / "predictions.jsonl").read_text())
    return {line["id"]: line["prediction"] for line in lines}


def timed(way: str, folder: Path) -> dict[str, Any]:
    """A way in a process of its own: what it replied, wall seconds, and CPU seconds of all its processes."""
    out = folder / f"{way}.json"
    out.unlink(missing_ok=True)
    start, spent = time.perf_counter(), dict[psutil.Process, float]()
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder)]
    done = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watched = psutil.Process(done.pid)
    while done.poll() is None:
        family = [watched]
        with suppress(psutil.Error):
            family += watched.children(recursive=True)
        for process in family:
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            spent[process] = times.user + times.system
        time.sleep(EVERY_S)
    if done.returncode:
        raise SystemExit(f"the way {way} ended with {done.returncode}")
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "cpu_s": sum(spent.values()), "replies": json.loads(out.read_text())}


def compared(folder: Path, rounds: int, ways: Sequence[str]) -> dict[str, Any]:
    """All ways by turns."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            runs[way].append(timed(way, folder))
            print(f"{way}: {runs[way][-1]['seconds']:.1f} s", file=sys.stderr, flush=True)
    replies = [r["replies"] for of in runs.values() for r in of]
    unequal = [id for id in replies[0] if any(r.get(id) != replies[0][id] for r in replies)]
    found = {
        way: {
            "seconds": round(statistics.median(r["seconds"] for r in of), 1),
            "cpu_s": round(statistics.median(r["cpu_s"] for r in of), 1),
        }
        for way, of in runs.items()
    }
    distinct = len(set(replies[0].values()))
    return {
        "rounds": rounds,
        "questions": len(replies[0]),
        "distinct": distinct,
        "unequal": len(unequal),
        "ways": found,
    }


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--questions", type=int, default=40, metavar="N")
    parser.add_argument("--pages", type=int, default=10, metavar="P", help="of a question")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        replies = {"plane": plane, "data": data, "process": process}[given.way](given.folder)
        (given.folder / f"{given.way}.json").write_text(json.dumps(replies))
        return 0
    with tempfile.TemporaryDirectory(prefix="raypipe-planes-") as made:
        folder = Path(made)
        from raypipe.contrib.world.write import write

        write(folder / "world", given.questions, pages=given.pages, seed=3, page_chars=2000)
        command = [sys.executable, "-m", "raypipe", "standins", str(folder / "standins")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = compared(folder, given.rounds, given.ways.split(","))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 1 if found["unequal"] else 0


if __name__ == "__main__":
    sys.exit(main())
