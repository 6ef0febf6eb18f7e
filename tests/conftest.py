"""What tests share: one local Ray for the session, the real data, a small invented data set."""

import io
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray would write a token file into the home folder
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a busy machine takes longer than the default
os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")  # the same: else a raylet ends after 15 s
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 means a thirtieth of a core beside other work
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # and Serve its proxy after 5 s
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of shared real data."""
    folder = os.environ.get("RAYPIPE_DATA")
    if not folder:
        pytest.skip("RAYPIPE_DATA is not set: no real data here")
    return Path(folder)


@pytest.fixture(scope="session")
def local_ray():
    """A Ray of two CPUs and four GPUs that are not there, started by this session and ended by it. Whoever
    asks for a GPU gets a number for it and computes on a CPU."""
    import ray

    ray.init(address="local", num_cpus=2, num_gpus=4, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """Six invented questions with twelve short pages each."""
    from raypipe.synth import write

    folder = tmp_path_factory.mktemp("world")
    write(folder, 6, pages=12, seed=3, page_chars=1500)
    return folder


@pytest.fixture(scope="session")
def ran(world, tmp_path_factory):
    """A store in which the recipe of fakes.yaml has answered the invented questions once."""
    from reruns import Bench

    bench = Bench(tmp_path_factory.mktemp("ran"), world)
    bench.first = bench.run()
    return bench


@pytest.fixture
def bench(ran, tmp_path):
    """A copy of that store, and what may be run on it next."""
    from reruns import Bench

    shutil.copytree(ran.folder / "store", tmp_path / "store")
    return Bench(tmp_path, ran.world)


@dataclass(frozen=True)
class Filled:
    """A store with every answer of the job, the answers, and the lines that they were asked from, by id."""

    recipe: object
    store: object
    answers: list
    lines: dict

    def texts(self, source):
        """The parsed text of a source."""
        table = f"texts-{self.recipe.texts_digest()}"
        return self.store.rows(table, "source", [source], ["text"])["text"].to_pylist()


@pytest.fixture(scope="session")
def filled(world, tmp_path_factory) -> Filled:
    """The invented world, indexed and answered with fakes that compute."""
    from raypipe.cli.opened import resolved
    from raypipe.core import arrow
    from raypipe.core.config import Conf
    from raypipe.pipeline.driver import Pipeline, Sizes, inline
    from raypipe.pipeline.ingest import ingest
    from raypipe.pipeline.tasks import Place
    from raypipe.report.progress import Progress
    from raypipe.store import Store

    here = Path(__file__).parent
    recipe = resolved(str(here / "fakes.yaml"), None, Conf((here.parent / "conf",)))
    uri = str(tmp_path_factory.mktemp("filled") / "store")
    store = Store.create(uri)
    with Progress(io.StringIO(), silent=True) as progress:
        pipeline = Pipeline(store, recipe, Place(uri, "sorted", "cpu", 1), Sizes(50, 3), inline, progress)
        ids = ingest(store, [world], "synth", progress).questions
        asked = arrow.question.records(store.rows("questions", "id", ids))
        pipeline.index(asked)
        pipeline.answer(asked)
        answers = list(pipeline.answers(asked))
    lines = [json.loads(x) for f in world.glob("questions*.jsonl") for x in f.read_text().splitlines()]
    return Filled(recipe, store, answers, {line["interaction_id"]: line for line in lines})
