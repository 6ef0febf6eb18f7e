"""The folder of an earlier run into which another eval was killed: no command takes it for either run."""

import json
import shlex

import pytest
from reruns import FAKES

from raypipe.api.cli.main import main
from raypipe.core.errors import DataError, Unavailable
from raypipe.evaluation.result_table import metadata
from raypipe.evaluation.view.run_list import RunList
from raypipe.evaluation.view.viewer import Viewer
from raypipe.runs.record import read
from raypipe.runs.release import live, promote
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")

OF_THE_TABLE = (
    "promote {run} --gate not-worse:1",
    "compare {run} {live}",
    "inspect {run} --losses",
    "score crag {run}",
    "export {run} --as predictions --out {here}/out.jsonl",
    "export {run} --as crag --out {here}/out.jsonl",
    "export {run} --as trec --out {here}/out.trec",
    "fit decide {run} --out {here}/fit.yaml",
    "judge pick {run} --random 1 --out {here}/labels.jsonl",
    "judge check {here}/known.jsonl --run {run}",
)
OF_THE_MANIFEST = ("promote {run}", "score qa {run}", "inspect {run} --faults", "inspect {run} q")


@pytest.fixture
def torn(bench):
    """A live run, and the folder of an earlier one that an eval was killed in after it had written its table:
    a folder stands in the place of the file that comes next."""
    bench.run(out="live")
    promote(Store.open(str(bench.folder / "store")), read(bench.folder / "live"), [])
    bench.run(FAKES.replace("threshold: 0.5\n", "threshold: 0.999\n"), out="tuned")
    run = RunFolder(bench.folder / "tuned")
    before = run.record.read_text()
    run.changes.write_text("null")
    run.predictions.unlink()
    run.predictions.mkdir()
    with pytest.raises(Unavailable, match=r"predictions\.jsonl cannot be written now"):
        bench.run(SURE, out="tuned")
    run.predictions.rmdir()
    run.predictions.write_text("")
    assert metadata(run.results)["run"] != json.loads(before)["run"], "the table is the new run's"
    return bench, run, before


def said_by(command, bench, run, capsys):
    """The exit code and the error of a command, which prints nothing else and writes no file."""
    here, store = bench.folder / "here", Store.open(str(bench.folder / "store"))
    here.mkdir(exist_ok=True)
    (here / "known.jsonl").write_text('{"id": "q", "prediction": "a", "label": "right"}\n')
    capsys.readouterr()
    words = command.format(run=run.path, live=bench.folder / "live", here=here)
    code = main(shlex.split(words))
    out, err = capsys.readouterr()
    assert out == "" and [f.name for f in here.iterdir()] == ["known.jsonl"], command
    assert live(store).run == read(bench.folder / "live").run, command
    return code, err


def test_every_command_refuses_it_and_the_same_eval_makes_it_whole(torn, capsys):
    bench, run, _ = torn
    assert not run.record.exists() and not run.changes.exists()
    for command in (*OF_THE_TABLE, *OF_THE_MANIFEST):
        code, err = said_by(command, bench, run, capsys)
        assert code == 3 and "found no run.json, which is written last. The same" in err, (command, err)
    bench.run(SURE, out="tuned")
    for command in OF_THE_TABLE[2:7]:
        assert main(shlex.split(command.format(run=run.path, here=bench.folder / "here"))) == 0, command


@pytest.mark.drill
def test_the_record_of_another_run_makes_it_none_of_that_run(torn, capsys):
    bench, run, before = torn
    run.record.write_text(before)  # as an eval that was killed left it when the record was not removed
    both = f"of run {json.loads(before)['run'][:8]}, found that of run"
    for command in OF_THE_TABLE:
        code, err = said_by(command, bench, run, capsys)
        assert code == 3 and both in err, (command, err)
    with pytest.raises(DataError, match=both):
        Viewer(RunList([run.path], None), None).get(f"/run/{json.loads(before)['run']}/")
