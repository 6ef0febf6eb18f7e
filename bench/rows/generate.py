"""Chats of `rag` with a real language model: the pipeline as jobs run it, next to vLLM's own `LLM.chat`.

Ray, both engines and the ranking stand before the first turn; a turn of ours plans, asks, stores and commits.
Neither engine caches prefixes: every turn asks the same. Takes the weights of `raypipe models
fetch smollm2-135m-instruct` from $RAYPIPE_HOME.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_rows import BenchRow, Contest
from machine import Machine

from raypipe.api.session import Session
from raypipe.contrib.world.write import write
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.result_table import each
from raypipe.models import vllm_terms
from raypipe.runs.cluster import capacity
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, with_worker
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store

MODEL = "smollm2-135m-instruct"
UNCACHED = {"enable_prefix_caching": False}
CHATS = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    given, most, chats = json.load(open(sys.argv[1]))
    llm, sampling = LLM(**given), SamplingParams(max_tokens=most, temperature=0.0)
    print("READY", flush=True)
    for _ in sys.stdin:
        said = llm.chat(chats, sampling, use_tqdm=False)
        print("REPLIES " + json.dumps([r.outputs[0].text for r in said]), flush=True)
"""


class Peer:
    """vLLM's `LLM` in a process of its own."""

    def __init__(self, folder: Path, given: dict[str, Any], most: int, chats: list[Any]) -> None:
        script, asked = folder / "chats.py", folder / "chats.json"
        script.write_text(CHATS)
        asked.write_text(json.dumps([given, most, chats]))
        command = [sys.executable, str(script), str(asked)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line("READY")

    def _line(self, head: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(head):
                return line.removeprefix(head)
        raise SystemExit(f"LLM.chat ended with status {self._process.wait()}")

    def ask(self) -> list[str]:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        replies: list[str] = json.loads(self._line("REPLIES "))
        return replies

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def unequal(ours: Sequence[str], peer: Sequence[str]) -> str:
    differ = sum(a != b for a, b in zip(ours, peer, strict=True))
    return "" if differ <= len(ours) // 60 else f"{differ} of {len(ours)} replies"


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    from raypipe.runs.cluster import connection, engine_groups, running

    session = Session(llm=MODEL, sets=("generate:llm.passages=1",))  # prompts of some 240 tokens
    recipe, written = session.recipe("rag"), session.cluster_file()
    connection.connect("local")
    cluster = capacity.sized(written, recipe.models()[-1:], connection.nodes())
    assert cluster.engines is not None
    cluster = replace(cluster, engines=replace(cluster.engines, engine=UNCACHED))
    group = engine_groups.EngineGroup.of(cluster, recipe.models())
    assert group is not None

    def run(verb: Any, work: Any, tasks: Any) -> Any:
        if verb != "answer":
            return running.run(verb, work, tasks, lambda: cluster.pools, cluster.limits)
        asking = with_worker(work, engines=group.first_engines)
        return engine_groups.run_tasks(asking, tasks, group.engines.answer, cluster.limits, verb)

    with tempfile.TemporaryDirectory(prefix="raypipe-bench-") as made, group.running():
        folder = Path(made)
        write(folder / "world", 10 if quick else 120, pages=2, seed=7, page_chars=1500)
        store = Store.create(str(folder / "store"))
        worker = WorkerConfig(store.uri, cluster.backend, "cpu", 1, engine_limits=group.engines.limits("cpu"))
        sizes, silent = TaskSizes(written.sources_per_task, written.questions_per_task), io.StringIO()
        pipe = Pipeline(
            store,
            recipe,
            worker,
            sizes,
            run,
            Progress(silent, silent=True),
            lambda verb: capacity.workers(cluster, verb, True),
        )
        with redirect_stdout(silent):
            evaluate(pipe, [folder / "world"], folder / "out", EvalOptions("crag", rule="words"))
        rows = list(each(RunFolder(folder / "out").results))
        said = [next(r for r in row["replies"] if r["step"] == "llm") for row in rows]
        [most] = {sampling.max_tokens for _, sampling, _ in recipe.chats()}
        questions = list(pipe.questions([row["id"] for row in rows]))

        def ours() -> list[str]:
            pipe.answer(questions, fresh=True)
            return [q.replies["llm"].text for q in pipe.answers(questions)]

        [model] = {model for model, _, _ in recipe.chats()}
        given = vllm_terms.arguments(model, group.engines.limits("cpu"))
        peer = Peer(folder, given, most, [list(r["prompt"]) for r in said])
        try:
            yield Contest(sum(r["generated_tokens"] for r in said), ours, peer.ask, unequal)
        finally:
            peer.close()


ROW = BenchRow(
    "120 chats of `rag` with a passage each, SmolLM2-135M-Instruct in one engine of laptop.yaml; Ray and "
    "engines are up, the ranking is cached, prefixes are not",
    "tokens",
    contest,
    "LLM.chat",
    by="wall",
    least=0.95,
    needs=("vllm",),
    turns=3,
)
