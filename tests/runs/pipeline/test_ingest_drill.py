"""A thousand shards by four workers, while processes are killed: the rows of one process."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
from checkout import ROOT
from test_ingest_tasks import SILENT, crag_line, rows

from raypipe.runs.pipeline.ingest import ingest
from raypipe.store import Store

SHARDS = 1000
READ = """
import sys
from pathlib import Path
from raypipe.api.pipelines import RayRun
from raypipe.api.session import Session, from_environment
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.ingest_tasks import TaskReading
from raypipe.runs.pipeline.tasks import WorkerConfig
from raypipe.core.progress import Progress
from raypipe.store import Store

settings = from_environment({"RAYPIPE_CONF": sys.argv[4]})
store, cluster = Store.open(sys.argv[1]), Session(settings, cluster=sys.argv[3]).cluster_file()
worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
run = RayRun(settings, worker, None, cluster, (), (), None)
how = TaskReading(worker, run.run, run.connect, 0, 1 << 20)
print(ingest(store, [Path(sys.argv[2])], "crag", Progress(sys.stderr, silent=True), reading=how).read_by)
"""
CLUSTER = """
about: four workers on two cores
backend: transformers
device: cpu
sources_per_task: 100
questions_per_task: 10
machines: [{nodes: 1, cpus: 2}]
pools: {parse: {actors: 4, cpus: 0.5}, embed: {actors: 4, cpus: 0.5}, answer: {actors: 4, cpus: 0.5}}
"""


def written(folder):
    """A thousand files; pages are shared by ten files each, and one question in a hundred comes again."""
    folder.mkdir()
    for n in range(SHARDS):
        lines = [
            crag_line(f"q{n}-{i}", "?", [(f"u{n // 10}", f"<p>{n // 10}</p>"), ("v", f"{n} {i}")])
            for i in "ab"
        ]
        if n % 100 == 99:
            lines.append(
                crag_line(f"q{n - 50}-a", "another?" if n % 200 == 99 else "?", pages_of(n - 50, "a"))
            )
        (folder / f"{n:04}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def pages_of(file, question):
    return [(f"u{file // 10}", f"<p>{file // 10}</p>"), ("v", f"{file} {question}")]


@pytest.mark.drill
@pytest.mark.ray
def test_a_thousand_shards_by_four_workers_under_kills_equal_one_process(tmp_path):
    data = written(tmp_path / "data")
    one, many = (Store.create(str(tmp_path / n)) for n in ("one", "many"))
    alone = ingest(one, [data], "crag", SILENT)
    (tmp_path / "four.yaml").write_text(CLUSTER)
    conf = ROOT / "conf"
    command = [sys.executable, "-c", READ, many.uri, str(data), str(tmp_path / "four.yaml"), str(conf)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    draw, killed, drivers = random.Random(1), 0, 0
    while True:
        # One session: its raylet and workers are ours to end with it.
        child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
        ends = time.monotonic() + 45 if drivers < 2 else float("inf")
        while child.poll() is None and time.monotonic() < ends:
            time.sleep(1.5)
            workers = [p for p in psutil.Process(child.pid).children(recursive=True) if _works(p)]
            if workers and killed < 20:
                draw.choice(workers).kill()
                killed += 1
        if child.poll() is not None:
            break
        for process in [*psutil.Process(child.pid).children(recursive=True), psutil.Process(child.pid)]:
            os.kill(process.pid, signal.SIGKILL)
        child.wait()
        drivers += 1
    assert child.returncode == 0
    assert killed > 3
    print(f"{killed} workers and {drivers} drivers killed; {child.stdout.read().strip()}")
    assert rows(many) == rows(one)
    assert many.count("questions") == len(set(alone.questions))


def _works(process):
    try:
        title = " ".join(process.cmdline())  # "ray::" and the operators of Ray Data that it runs
        return title.startswith("ray::") and "Map" in title
    except psutil.NoSuchProcess:
        return False
