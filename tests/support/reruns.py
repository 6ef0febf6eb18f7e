"""A store on which recipes are run one after the other, each held to its plan."""

import copy
import io
import json
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.protocols import ForwardingKit
from raypipe.core.textfile import json_lines
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store

CONF = Conf((ROOT / "conf",))
FAKES = (SUPPORT / "fakes.yaml").read_text()
MODELS = (
    (ROOT / "conf/models.yaml").read_text()
    + """
other-embedder: {kind: embedder, loader: hash, dim: 128}
other-reranker: {kind: reranker, loader: overlap, dtype: bfloat16}
"""
)


SIZES = TaskSizes(50, 4)


@contextmanager
def refusing(store, folder):
    """A store without one of its folders: a file stands in its place, so none is written or read there."""
    place = Path(store.uri) / folder
    aside = place.with_name(f".{place.name}.aside")
    place.mkdir(parents=True, exist_ok=True)
    place.rename(aside)
    place.write_bytes(b"")
    try:
        yield
    finally:
        place.unlink()
        aside.rename(place)


def rename_run(folder, run):
    """Gives the run of a folder another id, as a second eval of the same questions has it."""
    files = RunFolder(folder)
    files.record.write_text(json.dumps({**json.loads(files.record.read_text()), "run": run}))
    table = pq.read_table(files.results)
    pq.write_table(
        table.replace_schema_metadata({**table.schema.metadata, b"run": run.encode()}), files.results
    )


class WorkerKit(ForwardingKit):
    """What a test puts around a worker's kit: it overrides what it watches or breaks."""

    def with_index(self, index):
        other = copy.copy(self)
        other._kit = self._kit.with_index(index)
        return other

    @property
    def process(self):
        return self._kit.process

    @property
    def spent(self):
        return self._kit.spent

    def loading_s(self):
        return self._kit.loading_s()


@dataclass
class Bench:
    """A copy of a store in which the recipe of `fakes.yaml` has run, and what may be run on it next."""

    folder: Path
    world: Path
    first: object = None  # what the run came to that made the store
    file: str | None = "fakes.yaml"  # of the recipe, as runs know it in every copy; None: where it lies
    models: str = MODELS
    endpoints: dict = field(default_factory=dict)  # of models behind an address

    def pipeline(self, text=FAKES, sizes=SIZES, runner=inline):
        (self.folder / "fakes.yaml").write_text(text)
        (self.folder / "models.yaml").write_text(self.models)
        recipe = load_recipe(str(self.folder / "fakes.yaml"), str(self.folder / "models.yaml"), CONF)
        recipe = replace(recipe, file=self.file or recipe.file)
        store = Store.create(str(self.folder / "store"))
        silent = Progress(io.StringIO(), silent=True)
        worker = WorkerConfig(store.uri, "transformers", "cpu", 1, endpoints=self.endpoints)
        return Pipeline(store, recipe, worker, sizes, runner, silent)

    def run(self, text=FAKES, data=None, pipe=None, out="out", in_vain=False):
        """Step -> (planned, asked), step -> plan; after holding every run to its plan. What an attempt that
        was stopped had asked stood in that one's plan and is left out. `in_vain`: calls fail, which no plan
        knows."""
        plans = []
        pipe = pipe or self.pipeline(text)
        how = EvalOptions("crag", rule="official", on_plan=plans.append)
        done = evaluate(pipe, [data or self.world], self.folder / out, how)
        steps = {s.step: s for s in plans[0].steps}
        for line in done.record.steps:
            planned = line.planned - line.resumed
            assert planned == steps[line.step].max_calls
            assert sum(steps[line.step].reasons.values()) == planned
            assert in_vain or line.computed <= line.planned, line
            assert in_vain or line.computed == line.planned or not steps[line.step].exact, line
        steps_done = done.record.steps
        return {s.step: (s.planned - s.resumed, s.computed - s.resumed) for s in steps_done}, steps

    def lines(self):
        files = sorted(self.world.glob("questions*.jsonl"))
        return [line for f in files for line in json_lines(f.read_text())]

    def data(self, lines):
        file = self.folder / "data.jsonl"
        file.write_text("\n".join(json.dumps(line) for line in lines))
        return file
