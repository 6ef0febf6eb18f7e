"""The sweeps that the pages of the four papers give for their tables: every point is a recipe."""

import itertools
import re
import shlex

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.cli.main import parser
from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.evaluation.sweep import points
from raypipe.runs.stage_records import chains

CONF = Conf((ROOT / "conf",))
MODELS = str(SUPPORT / "fake_models.yaml")


def sweeps(page):
    """The recipe and the settings of each sweep of a page, in order."""
    text = (ROOT / f"docs/recipes/{page}.md").read_text().replace("\\\n", " ")
    for line in re.findall(r"^raypipe sweep .*$", text, re.MULTILINE):
        typed = parser().parse_args(shlex.split(line)[1:])
        yield typed.recipe, typed.values


def loaded(name, sets):
    return load_recipe(name, MODELS, CONF, sets=list(sets))


@pytest.mark.parametrize(
    ("page", "sizes"), [("onewo", [12]), ("weknow", [2, 3, 6, 4]), ("qasper", [3, 2])], ids=str
)
def test_every_point_of_a_paper_s_tables_is_a_recipe(page, sizes):
    found = list(sweeps(page))
    assert len(found) == len(sizes)
    for (name, sets), size in zip(found, sizes, strict=True):
        made = points(loaded, [name], sets)
        assert len(made) == size


def test_the_points_of_onewo_s_tables_differ_in_their_weights_alone():
    [(name, sets)] = sweeps("onewo")
    made = points(loaded, [name], sets)
    asked = [{s: c for s, c in chains(p.recipe).items() if s != "fuse:final"} for p in made]
    assert all(a == asked[0] for a in asked), "so each point after the first asks no model"
    weighed = [set(p.recipe.question[-1].step.used()) for p in made]
    assert weighed[0] == {"unasked"} and len(weighed[7]) == 7
    assert all(a < b for part in (weighed[1:7], weighed[8:]) for a, b in itertools.pairwise(part))
