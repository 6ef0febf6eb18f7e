"""Texts, passages and vectors in one pass: the same tables as one after the other, whatever is killed."""

import io
import re
from dataclasses import replace

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import Source, source_id
from raypipe.runs.pipeline.counters import RunCounters
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store, begun, done_parts, put
from raypipe.store.ids import Ids

CONF = Conf((ROOT / "conf",))
FAKES = (SUPPORT / "fakes.yaml").read_text()
TWO = re.sub(
    r"(  - embed: .*\n)",
    r"\1  - embed: {model: other-embedder, lower: true}\n",
    FAKES,
)
TWO = TWO.replace(
    "  - dense: {model: hash-embedder, top: 30}\n",
    "  - dense: {model: hash-embedder, top: 30}\n  - dense: {model: other-embedder, top: 5, into: other}\n",
)
SOURCES = [
    *(
        Source(source_id("snippet", t), "snippet", t)
        for t in (f"Line {i} of many, {i % 7} words." for i in range(40))
    ),
    Source(source_id("page", "<p> </p>"), "page", "<p> </p>"),  # no chunk
]


def pipeline(folder, streams=None, runner=inline, text=FAKES):
    folder.mkdir(exist_ok=True)
    (folder / "fakes.yaml").write_text(text)
    models = (ROOT / "conf/models.yaml").read_text()
    (folder / "models.yaml").write_text(
        models + "\nother-embedder: {kind: embedder, loader: hash, dim: 128}\n"
    )
    store = Store.create(str(folder / "store"))
    if not store.count("sources"):
        put(store, "sources", arrow.source.table(SOURCES))
    recipe = load_recipe(str(folder / "fakes.yaml"), str(folder / "models.yaml"), CONF)
    silent = Progress(io.StringIO(), silent=True)
    worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
    return Pipeline(store, recipe, worker, TaskSizes(8, 4), runner, silent, streams=streams)


def rows(store):
    """Every row of the tables of sources, whatever run it is of."""
    tables = [t.removesuffix(".lance") for t in store.files.names("") if t.endswith(".lance")]
    return {
        t: sorted(repr({k: v for k, v in r.items() if k != "run"}) for r in store.scan(t).to_pylist())
        for t in tables
        if not t.startswith(("embeddings-", "postings-", "lengths-"))  # segments bear names of their runs
    }


def always():
    return True


class Verbs:
    """Does tasks in this process, notes for which pool, and is killed after some."""

    def __init__(self, kill_after=None):
        self.seen, self._left = [], kill_after

    def __call__(self, verb, work, tasks):
        for result in inline(verb, work, tasks):
            self.seen.append(verb)
            yield result
            if self._left is not None and len(self.seen) == self._left:
                raise KeyboardInterrupt


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    pipe = pipeline(tmp_path_factory.mktemp("single") / "single")
    done = pipe.index(None)
    return rows(pipe.store), {name: (c.rows, c.faults, c.calls) for name, c in done.counts.items()}


@pytest.mark.drill
def test_one_pass_makes_the_tables_and_the_counts_of_three(expected, tmp_path):
    verbs = Verbs()
    pipe = pipeline(tmp_path / "whole", always, verbs)
    done = pipe.index(None)
    assert rows(pipe.store) == expected[0]
    assert {name: (c.rows, c.faults, c.calls) for name, c in done.counts.items()} == expected[1]
    assert verbs.seen == ["index"] * 6 + ["parse"], "and one task inverts the words"
    assert set(done.rows_by_worker) == {"parse", "embed"}
    again = Verbs()
    replace(pipe, runner=again).index(None)
    assert again.seen == [], "and nothing is left to do"


@pytest.mark.drill
@pytest.mark.slow
def test_a_killed_pass_is_finished_by_a_run_that_goes_table_by_table(expected, tmp_path):
    pipe = pipeline(tmp_path / "whole", always, Verbs(kill_after=2))
    with pytest.raises(KeyboardInterrupt):
        pipe.index(None)
    verbs = Verbs()
    done = replace(pipe, runner=verbs, streams=None).index(None)
    assert rows(pipe.store) == expected[0]
    assert verbs.seen == ["index"] * 4 + ["parse"], "the other parts, as they were begun"
    assert done.resumed == 2


@pytest.mark.drill
@pytest.mark.slow
def test_a_killed_run_of_a_table_is_finished_before_anything_goes_in_one_pass(expected, tmp_path):
    pipe = pipeline(tmp_path / "whole", None, Verbs(kill_after=2))
    with pytest.raises(KeyboardInterrupt):
        pipe.index(None)
    verbs = Verbs()
    replace(pipe, runner=verbs, streams=always).index(None)
    assert rows(pipe.store) == expected[0] and "index" not in verbs.seen


@pytest.mark.slow
def test_a_part_whose_vectors_are_lost_is_done_again_over_its_stored_texts(expected, tmp_path):
    pipe = pipeline(tmp_path / "whole", always, Verbs(kill_after=2))
    with pytest.raises(KeyboardInterrupt):
        pipe.index(None)
    model, store = pipe.recipe.embedders()[0], pipe.store
    builds = pipe.corpus
    none = Ids.of([])
    single = [builds.texts(none), builds.passages(none), builds.vectors(model, none)]
    run = begun(store, builds.whole(single, none).work_id)
    for part in done_parts(store, pipe.recipe.vectors_table(model), run.name):
        store.files.remove(f"_parts/{pipe.recipe.vectors_table(model)}/{run.name}/{part}.json")
    replace(pipe, runner=inline).index(None)
    assert rows(store) == expected[0]


@pytest.mark.slow
def test_rows_that_lack_one_table_alone_are_done_for_that_table(expected, tmp_path):
    pipe = pipeline(tmp_path / "whole")
    some = Ids.of(sorted(s.id for s in SOURCES)[:10])
    pipe.builder.build(pipe.corpus.texts(some), RunCounters())
    pipe = replace(pipe, streams=always)
    pipe.index(None)
    assert rows(pipe.store) == expected[0]


@pytest.mark.slow
def test_a_recipe_of_two_embedders_fills_both_tables_in_one_pass(tmp_path):
    single, whole = pipeline(tmp_path / "a", text=TWO), pipeline(tmp_path / "b", always, text=TWO)
    assert len(single.recipe.embedders()) == 2
    single.index(None)
    whole.index(None)
    assert rows(whole.store) == rows(single.store)
