"""A finished run in MLflow: logged to a fake server that holds MLflow's rules."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from chat_server import ChatServer

from raypipe.api.cli.main import main
from raypipe.core.errors import ConfError, DataError
from raypipe.evaluation.export import RUN_TAG, log_run
from raypipe.runs.run_parts import RunFolder

NAME = re.compile(r"[\w. -]{1,250}", re.ASCII)
"""Name of a param or metric, as MLflow takes it on every system. Its file store makes a folder at each slash,
where another name may be a file."""


class Broken(Exception):
    pass


class FakeMlflow:
    """Experiments and runs in memory, with the rules of MLflow's own stores. Breaks off at the `breaks`-th
    metric."""

    def __init__(self, breaks=None):
        self.experiments, self.runs, self.breaks = {}, {}, breaks

    def get_experiment_by_name(self, name):
        found = self.experiments.get(name)
        return None if found is None else SimpleNamespace(experiment_id=found)

    def create_experiment(self, name):
        assert name not in self.experiments
        return self.experiments.setdefault(name, str(len(self.experiments) + 1))

    def search_runs(self, experiment_ids, filter_string):
        tag, value = re.fullmatch(r"tags\.`(.+)` = '(\w+)'", filter_string).groups()
        return [
            SimpleNamespace(info=SimpleNamespace(run_id=id, status=run.status))
            for id, run in self.runs.items()
            if run.experiment in experiment_ids and run.tags.get(tag) == value
        ]

    def create_run(self, experiment_id, start_time, tags, run_name):
        id = f"run{len(self.runs) + 1}"
        self.runs[id] = SimpleNamespace(
            experiment=experiment_id,
            tags=tags,
            name=run_name,
            began=start_time,
            ended=None,
            status="RUNNING",
            params={},
            metrics={},
            files={},
        )
        return SimpleNamespace(info=SimpleNamespace(run_id=id))

    def delete_run(self, run_id):
        del self.runs[run_id]

    def log_param(self, run_id, key, value):
        assert NAME.fullmatch(key) and len(value) <= 500, key
        assert self.runs[run_id].params.setdefault(key, value) == value  # a param never changes

    def log_metric(self, run_id, key, value, timestamp):
        if self.breaks is not None and len(self.runs[run_id].metrics) == self.breaks:
            raise Broken
        assert NAME.fullmatch(key) and isinstance(value, float), key
        assert key not in self.runs[run_id].metrics
        self.runs[run_id].metrics[key] = value

    def log_text(self, run_id, text, artifact_file):
        self.runs[run_id].files[artifact_file] = text

    def log_artifact(self, run_id, local_path):
        self.runs[run_id].files[Path(local_path).name] = Path(local_path).read_bytes()

    def set_terminated(self, run_id, status, end_time):
        self.runs[run_id].status, self.runs[run_id].ended = status, end_time


@pytest.fixture(scope="module")
def folder(ran):
    return RunFolder(ran.folder / "out")


def test_recipe_measures_costs_and_files_of_a_run_stand_in_mlflow(folder):
    server, report = FakeMlflow(), json.loads(folder.record.read_text())
    made = log_run(folder, server, "crag")
    run = server.runs[made.id]
    assert run.tags == {RUN_TAG: report["run"]} and run.status == "FINISHED" and run.began <= run.ended
    assert (made.params, made.metrics, made.artifacts) == (len(run.params), len(run.metrics), len(run.files))
    assert run.params["recipe_digest"] == report["digest"] and run.params["recipe.split.child_chars"]
    assert (
        run.metrics["score"] == report["by_rule"]["score"]["score"]
        and run.metrics["questions"] == report["questions"]
    )
    lead = report["measures"][0]
    assert run.metrics[f"{lead['measure']}.low"] == lead["interval"][0]
    lost = {k: v for k, v in run.metrics.items() if k.startswith("lost.")}
    assert sum(lost.values()) == report["losses"]["misses"]
    assert "split.child_chars: " in run.files["recipe.txt"]
    assert run.files["results.parquet"] == folder.results.read_bytes()


def test_a_run_is_logged_once_and_one_that_broke_off_again(folder):
    server = FakeMlflow(breaks=3)
    with pytest.raises(Broken):
        log_run(folder, server, "crag")
    assert not server.runs and server.experiments
    server.breaks = None
    whole = log_run(folder, server, "crag")
    assert [r.status for r in server.runs.values()] == ["FINISHED"] and not whole.there
    assert log_run(folder, server, "crag").there and len(server.runs) == 1


def test_a_folder_of_no_run_and_an_experiment_of_a_file_are_refused(folder, tmp_path):
    from raypipe import export_run

    server = FakeMlflow()
    with pytest.raises(DataError, match="of a finished eval"):
        log_run(RunFolder(tmp_path), server, "crag")
    assert not server.runs and not server.experiments
    with pytest.raises(ConfError, match="--experiment: expected with --as mlflow, found --as trec"):
        export_run(folder.path, "trec", tmp_path / "x", experiment="crag")


CLIENT = """
import test_mlflow_run

def MlflowClient(tracking_uri):
    return test_mlflow_run.SERVERS[tracking_uri]
"""
SERVERS = {}  # address -> what answers there


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A package `mlflow` whose client talks to SERVERS; the servers' class of exceptions."""
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow/__init__.py").write_text(CLIENT)
    (tmp_path / "mlflow/exceptions.py").write_text("class MlflowException(Exception):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from mlflow.exceptions import MlflowException

    yield MlflowException
    SERVERS.clear()
    for name in ("mlflow", "mlflow.exceptions"):
        sys.modules.pop(name)


def test_a_server_that_is_down_or_breaks_off_is_said_and_the_same_command_logs_the_run_whole(
    folder, client, capsys
):
    before = {f.name: f.read_bytes() for f in folder.path.iterdir()}
    health = ChatServer(None)
    health.end()
    words = ["export", str(folder.path), "--as", "mlflow", "--out", health.url]
    assert main(words) == 69
    said = capsys.readouterr().err
    assert f"--out {health.url}: expected an MLflow server, found none that answers" in said
    assert "Connection refused" in said and "run the same command again" in said

    class Gone(FakeMlflow):
        def delete_run(self, run_id):
            raise client("API request failed: connection reset")

        def log_artifact(self, run_id, local_path):
            raise client("API request failed: connection reset")

    gone, again = Gone(), FakeMlflow()
    health = ChatServer(None)
    words[-1] = health.url
    SERVERS[health.url] = gone
    assert main(words) == 69 and "connection reset. Correct that and run the same" in capsys.readouterr().err
    assert [r.status for r in gone.runs.values()] == ["RUNNING"]
    again.runs, again.experiments = gone.runs, gone.experiments
    SERVERS[health.url] = again
    assert main(words) == 0
    assert "params" in capsys.readouterr().out
    [run] = again.runs.values()
    assert run.status == "FINISHED" and run.files["results.parquet"] == before["results.parquet"]
    assert main(words) == 0 and "was there already" in capsys.readouterr().out
    health.end()
    assert {f.name: f.read_bytes() for f in folder.path.iterdir()} == before
