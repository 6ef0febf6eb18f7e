"""Parsing and embedding at the same time on Ray: one worker with a CPU, two with a GPU that is not there."""

import io
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.config import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import Source, source_id
from raypipe.runs.cluster.capacity import side_by_side
from raypipe.runs.cluster.file import Cluster, Machines, Pool
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.recipe_tables import whole_corpus
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.pipeline.whole_corpus_task import WholeCorpusTask
from raypipe.store import Store, put

TEXTS = [f"Line {i} of many, which says {i % 7}." for i in range(60)]


@dataclass(frozen=True)
class Dying:
    """Work whose process ends, once, when it is to embed a certain task."""

    task: WholeCorpusTask
    mark: str
    worker: WorkerConfig

    async def open_prepare(self, kit):
        return await replace(self.task, worker=self.worker).open_prepare(kit)

    async def open_embed(self, kit):
        embed = await replace(self.task, worker=self.worker).open_embed(kit)

        async def dying(task, prepared):
            assert os.environ["CUDA_VISIBLE_DEVICES"] in ("0", "1", "2", "3")
            if task.name == "000002" and not os.path.exists(self.mark):
                Path(self.mark).touch()
                os._exit(1)
            return await embed(task, prepared)

        return dying


def pipeline(folder, runner, streams=None):
    store = Store.create(str(folder))
    put(store, "sources", arrow.source.table(Source(source_id("snippet", t), "snippet", t) for t in TEXTS))
    recipe = load_recipe(str(SUPPORT / "fakes.yaml"), None, Conf((ROOT / "conf",)))
    worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
    silent = Progress(io.StringIO(), silent=True)
    return Pipeline(store, recipe, worker, TaskSizes(8, 4), runner, silent, streams=streams)


def rows(store, table):
    return sorted(repr({k: v for k, v in r.items() if k != "run"}) for r in store.scan(table).to_pylist())


@pytest.mark.slow
def test_workers_with_and_without_gpus_fill_the_tables_of_one_process_though_one_dies(local_ray, tmp_path):
    from raypipe.runs.cluster.file import LIMITS
    from raypipe.runs.cluster.streamed_pool import StreamedPools, most_bytes

    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests to import
    mark = tmp_path / "died"
    pools = StreamedPools(Pool(1, cpus=0.5), Pool(2, cpus=0.2, gpus=1), most_bytes, LIMITS)

    def run(verb, work, tasks):
        if verb != "index":  # words are inverted afterwards
            return inline(verb, work, tasks)
        return pools.run(Dying(work, str(mark), work.worker), tasks)

    alone = pipeline(tmp_path / "alone", inline)
    alone.index(None)
    pipe = pipeline(tmp_path / "streamed", run, lambda: True)
    done = pipe.index(None)
    for table in whole_corpus(pipe.recipe)[1]:
        assert rows(pipe.store, table) == rows(alone.store, table), table
    assert pipe.store.count("faults") == 0 and mark.exists()
    assert sum(done.rows_by_worker["embed"].values()) == len(TEXTS)
    assert all(" gpu " in name for name in done.rows_by_worker["embed"])
    parsed = {name: rows for name, rows in done.rows_by_worker["parse"].items() if name}
    assert all(" process " in name for name in parsed) and sum(parsed.values()) == len(TEXTS)


def cluster(nodes, cpus, gpus, embed):
    pools = {"parse": Pool("fit", cpus=1), "embed": embed, "answer": Pool(1, cpus=1)}
    machines = (Machines(nodes, cpus, gpus, 80 if gpus else 0),)
    return Cluster("a test", "flagembedding", "cuda", 1000, 50, pools, machines)


def test_parsers_get_what_the_workers_with_gpus_leave():
    from raypipe.runs.cluster.capacity import declared_nodes, sized

    def both(file):
        nodes = declared_nodes(file)
        return side_by_side(sized(file, [], nodes), nodes)

    prepare, embed = both(cluster(1, 96, 8, Pool("fit", cpus=4, gpus=1)))
    assert (prepare.size, embed.size) == (64, 8)
    assert both(cluster(2, 4, 0, Pool("fit", cpus=1))) is None, "no GPU: one pool stays for all tables"
    assert both(cluster(1, 2, 1, Pool("fit", cpus=2, gpus=1))) is None, "no CPU is left for one that parses"
