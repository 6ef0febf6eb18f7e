"""What `import raypipe` gives: quick, typed, documented, with names that no package bears."""

import ast
import asyncio
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from checkout import SUPPORT

import raypipe
from raypipe import EXPORTS
from raypipe.api.results import Result, outside_loop
from raypipe.api.session import from_environment
from raypipe.core.errors import ConfError

SRC = Path(raypipe.__file__).parent


def test_importing_it_imports_no_library():
    code = "import sys, raypipe; dir(raypipe); print(sorted({m.split('.')[0] for m in sys.modules}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"ray", "torch", "lance", "lancedb", "pyarrow", "numpy", "pandas", "vllm", "transformers", "yaml"}
    assert "raypipe" in said and not heavy & set(ast.literal_eval(said))


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_has_a_docstring_and_types(name):
    value = getattr(raypipe, name)
    assert value.__doc__ and value.__module__.startswith("raypipe.")
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


def test_no_export_bears_a_packages_name():
    assert not set(EXPORTS) & {p.name for p in SRC.iterdir() if p.is_dir()}


def test_type_checkers_see_the_same_names():
    tree = ast.parse((SRC / "__init__.pyi").read_text())
    seen = {a.asname: n.module for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert seen == EXPORTS


def test_a_name_that_it_has_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        _ = raypipe.evalute


@pytest.mark.slow
def test_no_namespace_of_the_command_line_is_passed_below_it():
    files = [p for p in SRC.rglob("*.py") if "cli" not in p.relative_to(SRC).parts]
    assert len(files) > 100
    for file in files:
        names = {
            a.name
            for n in ast.walk(ast.parse(file.read_text()))
            if isinstance(n, ast.Import)
            for a in n.names
        }
        assert "argparse" not in names, file


@pytest.mark.parametrize("module", sorted({m for m in EXPORTS.values() if m.startswith("raypipe.api")}))
def test_a_public_name_of_a_module_is_documented(module):
    made = importlib.import_module(module)
    for name, value in vars(made).items():
        if inspect.isfunction(value) and value.__module__ == module and not name.startswith("_"):
            assert value.__doc__, f"{module}.{name}"


@dataclass(frozen=True, slots=True)
class Score:
    """A mean."""

    mean: float
    scored: int | None


@dataclass(frozen=True, slots=True)
class Film:
    """A row."""

    name: str
    score: Score
    labels: Mapping[str, int]


@dataclass(frozen=True, slots=True, repr=False)
class Films(Result):
    """Two rows."""

    names: tuple[str, ...] = ("<b>Velora</b>", "Brask")

    def rows(self) -> Sequence[Film]:
        return [Film(n, Score(1 / 3, None), {"x": 1}) for n in self.names]


def test_a_result_is_an_arrow_table_of_the_fields_of_its_rows():
    row = {"name": "<b>Velora</b>", "labels": [("x", 1)], "score.mean": 1 / 3, "score.scored": None}
    assert Films().table().select(list(row)).to_pylist()[0] == row
    empty = Films(()).table()
    assert empty.num_rows == 0 and empty.schema == Films().table().schema
    assert empty.schema.field("score.mean").type == pa.float64()


def test_a_result_is_a_line_in_a_terminal_and_a_table_in_a_notebook():
    assert repr(Films()) == "Films of 2 rows: .table(), .to_pandas(), .to_dict()"
    page = Films()._repr_html_()
    assert "<th>score.mean</th>" in page and "<td>0.333333</td>" in page
    assert "&lt;b&gt;Velora&lt;/b&gt;" in page and "<b>Velora" not in page


def test_a_result_is_a_frame_where_pandas_is_installed(monkeypatch):
    assert "score.mean" in Films().to_pandas().columns
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfError, match="pandas is not installed"):
        Films().to_pandas()


def test_a_function_with_a_loop_of_its_own_runs_inside_of_a_notebooks_loop():
    async def three():
        return 3

    @outside_loop
    def call():
        return asyncio.run(three())

    async def cell():
        return call()

    assert call() == asyncio.run(cell()) == 3


def test_scores_of_a_file_are_what_the_command_prints(capsys, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"query": "q", "answer": "paris", "prediction": "Paris"}) + "\n")
    score = raypipe.score_crag(file)
    assert score.table()["score"].to_pylist() == [1.0]
    from raypipe.api.cli.main import main

    assert main(["score", "crag", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(score.to_dict()))


FAKES = SUPPORT / "fakes.yaml"


@pytest.fixture
def session(tmp_path):
    environ = {"RAYPIPE_CONF": str(SRC.parents[1] / "conf"), "RAYPIPE_HOME": str(tmp_path / "home")}
    return raypipe.Session(from_environment(environ, tmp_path))


@pytest.mark.slow
def test_a_run_with_nothing_to_do_needs_no_ray_and_gives_its_questions_as_rows(bench, session):
    plan = raypipe.plan(FAKES, bench.world, bench.folder / "store", "crag", session=session)
    assert plan.table()["max_calls"].to_pylist() == [0] * plan.table().num_rows
    done = raypipe.evaluate(
        FAKES, bench.world, bench.folder / "store", bench.folder / "again", format="crag", session=session
    )
    table = done.table()
    assert done.evaluation.reused == table.num_rows == 6 and None not in table["verdict"].to_pylist()
    assert json.loads(json.dumps(done.to_dict())) == json.loads((done.folder / "run.json").read_text())
    frame = done.to_pandas()
    assert set(frame["verdict"]) <= {"right", "wrong", "i don't know", "not scored"}
    assert frame["asked_at"].dtype.kind == "M" and {"golds", "f1", "domain", "lost"} <= set(frame.columns)
    assert str(done.run.run[:8]) in repr(done) and "\n" not in repr(done)
    place = bench.folder / "store", bench.folder / "next"
    next = raypipe.evaluate(FAKES, bench.world, *place, format="crag", session=session, changes=True)
    assert next.changes is not None and not next.changes.changed and next.changes.same == 6


@pytest.mark.slow
def test_a_finished_run_is_explained_and_released(bench, session):
    run = raypipe.evaluate(
        FAKES, bench.world, bench.folder / "store", bench.folder / "run", format="crag", session=session
    )
    row = run.table()["id"][0].as_py()
    why = raypipe.why(run.folder, row)
    assert why.table()["step"].to_pylist()[-1] == "decide" and why.explanation.question == row
    assert raypipe.faults(run.folder).table().num_rows == 0
    assert raypipe.releases(bench.folder / "store", session).table().num_rows == 0
    live = raypipe.promote(run.folder, ["missing<=1"], min_scored=0)
    found = raypipe.releases(bench.folder / "store", session)
    assert found.live == live.release.id and found.table()["live"].to_pylist() == [True]
    with pytest.raises(ConfError, match="no earlier release"):
        raypipe.rollback(bench.folder / "store", session)
    assert raypipe.prune(bench.folder / "store", dry_run=True, session=session).dry_run


@pytest.mark.slow
def test_one_question_is_answered_from_pages(world, session, tmp_path):
    line = next(world.glob("questions*.jsonl")).read_text().splitlines()[0]
    (tmp_path / "one.jsonl").write_text(line)
    said = raypipe.ask(FAKES, json.loads(line)["query"], tmp_path / "one.jsonl", session=session)
    assert said.outcome in ("answered", "abstained") and said.table().num_rows > 0
    assert said.to_dict()["outcome"] == said.outcome
    with pytest.raises(ConfError, match="found an empty text"):
        raypipe.ask(FAKES, " ", session=session)


@pytest.mark.slow
def test_files_are_ingested_and_parsed(world, session, tmp_path):
    read = raypipe.ingest(world, tmp_path / "store", session=session)
    counts = dict(zip(*read.table().to_pydict().values(), strict=True))
    assert counts["rows"] == 6 and "6 questions" in read.title
    assert raypipe.ingest(world, tmp_path / "store", session=session).summary.again
    (tmp_path / "a.html").write_text("<p>one</p><p>two</p>")
    assert [p.text for p in raypipe.parse_html([tmp_path / "a.html"])] == ["one two"]


def test_this_machine_and_the_models_of_a_recipe_are_rows(session):
    assert "python" in raypipe.check_environment(session=session).table()["what"].to_pylist()
    assert raypipe.model_needs("local", session).table()["state"].to_pylist() == ["here", "here"]
