"""The corpus half as one graph of Ray Data: on CPUs alone, and with two GPUs that are not there."""

import io
import os
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import Source, source_id
from raypipe.runs.cluster.capacity import side_by_side
from raypipe.runs.cluster.cluster_file import LIMITS, Cluster, Machines, Pool
from raypipe.runs.pipeline.corpus_operators import CorpusOperator, CorpusTask
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.recipe_tables import whole_corpus
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store, put

TEXTS = [f"Line {i} of many, which says {i % 7}." for i in range(60)]


@dataclass(frozen=True)
class Dying:
    """The operator that embeds, whose process ends, once, when it has a certain part."""

    embed: CorpusOperator
    mark: str
    name = "embed"
    pool = "embed"
    in_hand = 0

    async def open(self, kit):
        embed = await self.embed.open(kit)

        async def dying(block):
            assert os.environ["CUDA_VISIBLE_DEVICES"] in ("0", "1", "2", "3")
            if block.part == "000002" and not os.path.exists(self.mark):
                Path(self.mark).touch()
                os._exit(1)
            return await embed(block)

        return dying


@dataclass(frozen=True)
class Mortal(CorpusTask):
    """The corpus half with that operator."""

    mark: str = ""

    def operators(self):
        *before, embed = super().operators()
        return [*before, Dying(embed, self.mark)]


@dataclass(frozen=True)
class Slow(Dying):
    """The operator that embeds, which takes seconds and says how far it is."""

    async def open(self, kit):
        from raypipe.core.progress import IN_HAND  # that of the worker, not a copy of the driver's

        embed = await self.embed.open(kit)

        async def slow(block):
            for _ in range(4):
                IN_HAND.add(11)
                time.sleep(0.7)
            return await embed(block)

        return slow


@dataclass(frozen=True)
class Slowly(CorpusTask):
    """The corpus half with that operator."""

    def operators(self):
        *before, embed = super().operators()
        return [*before, Slow(embed, "")]


class Leaping:
    """A clock that leaps ten seconds a look: progress says a line each time."""

    at = 0.0

    def __call__(self):
        self.at += 10
        return self.at


def pipeline(folder, runner, streams=None, progress=None, texts=TEXTS):
    store = Store.create(str(folder))
    put(store, "sources", arrow.source.table(Source(source_id("snippet", t), "snippet", t) for t in texts))
    recipe = load_recipe(str(SUPPORT / "fakes.yaml"), None, Conf((ROOT / "conf",)))
    worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
    shown = progress or Progress(io.StringIO(), silent=True)
    return Pipeline(store, recipe, worker, TaskSizes(8, 4), runner, shown, streams=streams)


def rows(store, table):
    return sorted(repr({k: v for k, v in r.items() if k != "run"}) for r in store.scan(table).to_pylist())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    pipe = pipeline(tmp_path_factory.mktemp("alone") / "store", inline)
    pipe.index(None)
    return {table: rows(pipe.store, table) for table in whole_corpus(pipe.recipe)[1]}


def written(stats, name):
    """Rows that the operator of this name put out, of Ray Data's own statistics."""
    return int(re.search(r"Total output num rows: (\d+)", of_operator(stats, name))[1])


def taken(stats, name):
    return int(re.search(r"Total input num rows: (\d+)", of_operator(stats, name))[1])


def of_operator(stats, name):
    [part] = [p for p in stats.split("\n\n") if f"({name})" in p.splitlines()[0]]
    return part


@pytest.mark.ray
def test_a_graph_fills_the_tables_of_one_process_and_its_statistics_have_their_rows(
    local_ray, tmp_path, alone
):
    from raypipe.runs.cluster import running

    said, two = [], Pool(2, cpus=1)
    pools = {"parse": two, "embed": two}

    def run(verb, work, tasks):
        if verb != "index":  # words are inverted afterwards
            return inline(verb, work, tasks)
        return running.run(verb, work, tasks, lambda: pools, LIMITS, said.append)

    pipe = pipeline(tmp_path / "graph", run, lambda: True)
    done = pipe.index(None)
    assert {table: rows(pipe.store, table) for table in alone} == alone
    assert sum(done.rows_by_worker["embed"].values()) == len(TEXTS)
    parsed = {name: rows for name, rows in done.rows_by_worker["parse"].items() if name}
    assert sum(parsed.values()) == len(TEXTS) and all(" process " in name for name in parsed)
    assert "ReadMissing->MapBatches(parse)->MapBatches(split)" in said[0]
    assert "MapBatches(embed)->Write" in said[0]
    [vectors] = [alone[pipe.recipe.vectors_table(m)] for m in pipe.recipe.embedders()]
    assert written(said[0], "split") == len(vectors) == taken(said[0], "embed")


@pytest.mark.ray
@pytest.mark.drill
def test_workers_with_and_without_gpus_fill_the_tables_of_one_process_though_one_dies(
    local_ray, tmp_path, alone
):
    from raypipe.runs.cluster import running

    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests to import
    mark, said = tmp_path / "died", []
    pools = {"parse": Pool(1, cpus=0.5), "embed": Pool(2, cpus=0.2, gpus=1)}

    def run(verb, work, tasks):
        if verb != "index":  # words are inverted afterwards
            return inline(verb, work, tasks)
        mortal = Mortal(
            work.worker, work.recipe, work.run, models=work.models, memo=work.memo, mark=str(mark)
        )
        return running.run(verb, mortal, tasks, lambda: pools, LIMITS, said.append)

    pipe = pipeline(tmp_path / "graph", run, lambda: True)
    done = pipe.index(None)
    assert {table: rows(pipe.store, table) for table in alone} == alone
    assert pipe.store.count("faults") == 0 and mark.exists()
    assert sum(done.rows_by_worker["embed"].values()) == len(TEXTS)
    assert all(" gpu " in name for name in done.rows_by_worker["embed"])
    assert all(" process " in name for name in done.rows_by_worker["parse"] if name)
    assert written(said[0], "embed") == len(alone[pipe.recipe.vectors_table(pipe.recipe.embedders()[0])])


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


@pytest.mark.ray
def test_passages_inside_a_part_are_shown_while_a_worker_embeds_them(local_ray, tmp_path):
    from raypipe.runs.cluster import running

    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests to import
    out, pool = io.StringIO(), Pool(1, cpus=1)

    def run(verb, work, tasks):
        if verb != "index":
            return inline(verb, work, tasks)
        slowly = Slowly(work.worker, work.recipe, work.run, models=work.models, memo=work.memo)
        return running.run(verb, slowly, tasks, lambda: {"parse": pool, "embed": pool}, LIMITS)

    made = pipeline(tmp_path / "graph", run, lambda: True, Progress(out, now=Leaping()))
    replace(made, sizes=TaskSizes(100, 4)).index(None)  # one part
    said = [line for line in out.getvalue().splitlines() if line.startswith("indexed 0/60 sources")]
    assert any(re.match(r"indexed 0/60 sources, (11|22|33) passages embedded, 0 %", line) for line in said)
    assert "indexed 60/60 sources, 60 passages embedded in" in out.getvalue()


def test_passages_inside_a_task_are_shown_while_this_process_embeds_them(tmp_path):
    out = io.StringIO()
    texts = [f"Text {i} of a task." for i in range(150)]
    made = pipeline(tmp_path / "here", inline, None, Progress(out, now=Leaping()), texts)
    replace(made, sizes=TaskSizes(150, 4)).index(None)  # one task
    said = [line for line in out.getvalue().splitlines() if line.startswith("embedded")]
    assert [line.split()[1] for line in said] == ["64/150", "128/150", "150/150"]
