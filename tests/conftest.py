"""What tests share: one local Ray for the session, the real data, a small invented dataset.

And what holds of every test: finding it imports no heavy library, and one that is not marked so starts
neither Ray nor an engine.
"""

import gc
import io
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from run import ALONE, TESTS, marked

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray would write a token file into the home folder
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a busy machine takes longer than the default
os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")  # the same: else a raylet ends after 15 s
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 means a thirtieth of a core beside other work
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # and Serve its proxy after 5 s
os.environ.setdefault("AUTOSCALER_UPDATE_INTERVAL_S", "60")  # nothing grows here, and Ray looks every 5 s
os.environ.setdefault("REPORTER_UPDATE_INTERVAL_MS", "60000")  # the same for how each process fares
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: a second thread would wait for the first
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of Ray's workers would compile the package again
CONF = Path(__file__).parents[1] / "conf"
HEAVY = ("ray", "torch", "vllm")
ENGINE = "vllm.v1.engine.async_llm"
TRACES = {"ray": "ray/session_*", "engine": "vllm_dist_*"}
"""Marker -> what is left in the folder for temporary files by whichever process starts such a thing."""
BEFORE = pytest.StashKey[dict]()


def pytest_configure(config):
    """Ray and all processes that tests start have a folder of their own for temporary files.

    Nothing that this process writes is to outlive a power cut, so it waits for no disk: a small run syncs two
    hundred times. Drills that cut the power do so in processes of their own (bench/drills/write_events.py).
    """
    os.fsync = lambda file: None
    gc.disable()  # finding tests makes objects that stay: looking through them takes a third of its time
    tempfile.gettempdir()  # pytest's own stay where they are looked for
    config.temporary = Path(tempfile.mkdtemp(prefix="raypipe-", dir="/tmp"))  # short, for Ray's sockets
    os.environ["RAY_TMPDIR"] = os.environ["TMPDIR"] = str(config.temporary)


def pytest_report_header(config):
    return f"logs of what tests start: {config.temporary}"


def pytest_sessionfinish(session, exitstatus):
    """Ray's logs stay where something went wrong."""
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.config.add_cleanup(lambda: shutil.rmtree(session.config.temporary, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Whoever uses the session's Ray, engine or browser is marked so. The engine comes last: idle, it takes a
    sixth of a core from the others."""
    for item in items:
        for fixture, marker in (("local_ray", "ray"), ("team", "engine"), ("browser", "browser")):
            if fixture in item.fixturenames:
                item.add_marker(marker)
    alone = {item.path for item in items if any(map(item.get_closest_marker, ALONE.split(" or ")))}
    missed = {path for path in alone - set(map(Path, marked(ALONE))) if TESTS in path.parents}
    if missed:
        raise pytest.UsageError(f"expected a marker or one of run.FIXTURES in the text of {missed}")
    items.sort(key=lambda item: item.get_closest_marker("engine") is not None)


def pytest_make_parametrize_id(val, argname):
    """Packed bytes have the time in them: a name made of them is another in each process."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish(session):
    """Fails where finding the tests has imported what takes seconds. What was found is no garbage."""
    if found := [name for name in HEAVY if name in sys.modules]:
        raise pytest.UsageError(f"a test module imports {', '.join(found)}: import it where it is used")
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[BEFORE] = _started(item.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Holds a test, with the fixtures that it is the first to use, to its markers."""
    done = yield
    for marker, count in _started(item.config).items():
        if count > item.stash[BEFORE][marker] and item.get_closest_marker(marker) is None:
            pytest.fail(f"it starts what the marker `{marker}` stands for, and does not bear it")
    return done


def _started(config):
    """Marker -> how many of its kind were started until now."""
    started = {marker: len(list(config.temporary.glob(trace))) for marker, trace in TRACES.items()}
    started["engine"] += ENGINE in sys.modules  # started in this process, which knows another folder
    return started


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of shared real data."""
    folder = os.environ.get("RAYPIPE_DATA")
    if not folder:
        pytest.skip("RAYPIPE_DATA is not set: no real data here")
    return Path(folder)


@pytest.fixture(scope="session")
def local_ray():
    """Ray, and a cluster of four CPUs and four GPUs that are not there, which this session starts and ends:
    room for the shared engine, an endpoint and a pool at the same time. Whoever asks for a GPU gets a number
    for it and computes on a CPU."""
    import ray

    from raypipe.runs.cluster import connection

    connection.join("local", num_cpus=4, num_gpus=4, include_dashboard=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def engine_groups():
    """The module of engines on Ray, whose import takes a second: no collection of tests does it."""
    from raypipe.runs.cluster import engine_groups

    return engine_groups


@pytest.fixture
def run_tasks(local_ray, engine_groups):
    """(work, tasks, pool, limits) -> results, as a graph of Ray Data."""
    return engine_groups.run_tasks


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, which shows no window. While it is there, this thread has an event loop that runs,
    and asyncio.run refuses: so it ends with its module."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test has it")
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def serve_port(local_ray):
    """Where a Serve listens, which ends with its module: idle, its controller takes a twentieth of a core."""
    import socket

    from ray import serve
    from ray.serve.config import HTTPOptions

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
    yield port
    serve.shutdown()


@pytest.fixture(scope="session")
def standins(tmp_path_factory) -> Path:
    """The models file next to stand-ins."""
    from raypipe.api.cli.main import main

    folder = tmp_path_factory.mktemp("standins")
    assert main(["standins", str(folder)]) == 0
    return folder / "models.yaml"


@pytest.fixture(scope="session")
def team(local_ray, engine_groups, standins):
    """The session's one engine, started as a job starts it, and gone afterwards with all its processes."""
    from shared_engine import REAPER, VLLM, engines_end, living

    from raypipe.api.session import load_recipe
    from raypipe.core import config
    from raypipe.core.conf import Conf
    from raypipe.core.config import Where
    from raypipe.runs.cluster import connection
    from raypipe.runs.cluster.cluster_file import Cluster

    path = CONF / "clusters/laptop.yaml"
    file = config.build(Cluster, config.read_yaml(path), Where(str(path)))
    recipes = (load_recipe(name, str(standins), Conf((CONF,))) for name in ("crag-baseline", "db3-task1-700"))
    made = engine_groups.EngineGroup.of(file, [model for recipe in recipes for model in recipe.models()])
    assert made is not None and len(made.models) == 1, "both recipes name one model"
    made.preflight(connection.nodes())
    before = set(living(VLLM, REAPER))
    with made.running():
        yield made
    assert engines_end(before), "an engine outlived its job"


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """Six invented questions with twelve short pages each."""
    from raypipe.contrib.world.write import write

    folder = tmp_path_factory.mktemp("world")
    write(folder, 6, pages=12, seed=3, page_chars=1500)
    return folder


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    """A store with twenty questions and two runs, the first of which is live."""
    from endpoint import released_runs

    return released_runs(tmp_path_factory)


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
        table = self.recipe.texts_table
        return self.store.rows(table, "source", [source], ["text"])["text"].to_pylist()


@pytest.fixture(scope="session")
def filled(world, tmp_path_factory) -> Filled:
    """The invented world, indexed and answered with fakes that compute."""
    from raypipe.api.session import load_recipe
    from raypipe.core import arrow
    from raypipe.core.conf import Conf
    from raypipe.core.progress import Progress
    from raypipe.core.textfile import json_lines
    from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
    from raypipe.runs.pipeline.ingest import ingest
    from raypipe.runs.pipeline.tasks import WorkerConfig, inline
    from raypipe.store import Store

    fakes = Path(__file__).parent / "support" / "fakes.yaml"
    recipe = load_recipe(str(fakes), None, Conf((CONF,)))
    uri = str(tmp_path_factory.mktemp("filled") / "store")
    store = Store.create(uri)
    with Progress(io.StringIO(), silent=True) as progress:
        pipeline = Pipeline(
            store, recipe, WorkerConfig(uri, "transformers", "cpu", 1), TaskSizes(50, 3), inline, progress
        )
        ids = ingest(store, [world], "synth", progress).questions
        asked = arrow.question.records(store.rows("questions", "id", ids))
        pipeline.index(asked)
        pipeline.answer(asked)
        answers = list(pipeline.answers(asked))
    lines = [x for f in world.glob("questions*.jsonl") for x in json_lines(f.read_text())]
    return Filled(recipe, store, answers, {line["interaction_id"]: line for line in lines})
