"""The step of docs/extend.md in its own folder: checked, planned and evaluated as it is written there."""

import json
import sys
from dataclasses import replace

import own_step
import pytest
from reruns import CONF, Bench

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.contrib.world.write import write
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    own_step.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command puts the folder on it
    yield tmp_path
    for name in [n for n in sys.modules if n.partition(".")[0] == "mypkg"]:
        del sys.modules[name]


def test_the_step_of_the_page_is_checked_planned_and_evaluated_word_for_word(folder, local_ray, capsys):
    write(folder / "world", 6, pages=1, seed=3, page_chars=1000)
    places = {
        "/data/world": folder / "world",
        "/data/shout": folder / "store",
        "/data/runs/shout": folder / "out",
    }
    check, plan, evaluate = own_step.commands(places)
    assert (check[0], plan[0], evaluate[0]) == ("check", "plan", "eval")
    assert main(check) == 0
    assert (folder / "mypkg" / "steps.lock").is_file()
    capsys.readouterr()
    assert main([*plan, "--json"]) == 0
    steps = {s["step"]: s for s in json.loads(capsys.readouterr().out)["steps"]}
    assert (steps["Shout:shout"]["rows"], steps["Shout:shout"]["max_calls"]) == (6, 0)
    assert main([*evaluate, "--json"]) == 0
    capsys.readouterr()
    lines = (folder / "out" / "predictions.jsonl").read_text().splitlines()
    said = [json.loads(line) for line in lines]
    assert len(said) == 6 and all(x["prediction"] == x["query"].upper() for x in said)


BROKEN = {
    "rows": ("return [", "return questions[:1] and [", "for q in questions", "for q in questions[1:]"),
    "batch": ("q.text.upper()", "f'{len(questions)} {q.text}'"),
    "reads": ('frozenset({"text"})', "frozenset()"),
    "writes": ("replace(q, ", "replace(q, body='', "),
    "bound": ("Bound(0, reach, ", "Bound(-1, reach, "),
}


@pytest.mark.parametrize("law", BROKEN)
def test_a_step_that_breaks_a_law_is_told_which_and_ends_with_3(folder, law, capsys):
    file = folder / "mypkg" / "steps.py"
    text = file.read_text()
    for old, new in zip(BROKEN[law][::2], BROKEN[law][1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    assert main(["check", "mypkg.steps:Shout", "--json"]) == 3
    [found] = json.loads(capsys.readouterr().out)["steps"]
    assert not found["holds"]
    assert law in {c["law"] for c in found["laws"] if not c["holds"] and c["detail"]}


def test_output_that_moved_under_a_locked_version_is_refused_until_the_version_is_raised(folder, capsys):
    file = folder / "mypkg" / "steps.py"

    def lock(old, new, *options):
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        for name in [n for n in sys.modules if n.startswith("mypkg")]:
            del sys.modules[name]
        code = main(["check", "mypkg.steps:Shout", "--json", *options])
        return code, json.loads(capsys.readouterr().out)["steps"][0]["lock"]

    assert lock("upper()", "upper()") == (0, "none")
    assert lock("upper()", "upper()", "--lock") == (0, "written")
    assert lock("Shouting", "Crying") == (0, "same")
    assert lock("upper()", "lower()", "--lock") == (3, "moved")
    assert lock("ClassVar[int] = 1", "ClassVar[int] = 2") == (0, "none")
    assert lock("lower()", "lower()", "--lock") == (0, "written")


CORPUS = '''
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.protocols import Build, CorpusBound, Kit


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Adds how long each text is."""

    version: ClassVar[int] = 1

    def reads(self) -> frozenset[str]:
        return frozenset({"text"})

    def writes(self) -> frozenset[str]:
        return frozenset({"length"})

    def bound(self, chars: float) -> CorpusBound:
        return CorpusBound(1, chars)

    def open(self, kit: Kit) -> Build:
        async def build(table: pa.Table) -> pa.Table:
            return table.append_column("length", pc.utf8_length(table["text"]))

        return build
'''


def test_a_corpus_step_from_outside_is_held_to_the_laws_of_tables(folder, capsys):
    (folder / "mypkg" / "lengths.py").write_text(CORPUS)
    assert main(["check", "mypkg.lengths:Length", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["steps"]
    assert found["half"] == "corpus" and len(found["laws"]) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mypkg.steps:Shout", "--fields", "{too: 1}"], "mypkg.steps:Shout: unknown field 'too'"),
        (["mypkg.steps:Shout", "--fields", "[1]"], "--fields: expected a mapping"),
        (["mypkg.stepz"], "no 'mypkg.stepz' under recipes/"),
    ],
)
def test_what_cannot_be_checked_is_said_with_what_was_expected(folder, arguments, said, capsys):
    assert main(["check", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_corpus_step_of_ones_own_fills_its_column_and_is_planned_and_run(folder, world, capsys):
    (folder / "mypkg" / "lengths.py").write_text(CORPUS)
    recipe = (folder / "shout.yaml").read_text()
    assert "  - split" in recipe
    (folder / "shout.yaml").write_text(recipe.replace("  - split", "  - mypkg.lengths:Length\n  - split"))
    sys.path.append(str(folder))
    bench = Bench(folder, world)
    pipe = replace(bench.pipeline(), recipe=load_recipe("shout.yaml", None, CONF))
    plans = []
    evaluate(pipe, [world], folder / "out", EvalOptions("crag", rule="official", on_plan=plans.append))
    steps = {s.step: s for s in plans[0].steps}
    assert steps["Length"].exact and steps["Length"].max_calls == steps["parse"].max_calls > 0
    texts = pipe.store.dataset(pipe.recipe.texts_table).to_table(["text", "length"]).to_pylist()
    assert texts and all(r["length"] == len(r["text"]) for r in texts)
