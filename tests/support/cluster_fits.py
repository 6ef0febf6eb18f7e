"""All recipes against all cluster files, by the published sizes of models: the table of docs/operations.md.

`python tests/support/cluster_fits.py` writes it. No model's files are needed: a size is that of its entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from checkout import ROOT

from raypipe.api.session import load_recipe
from raypipe.core import config
from raypipe.core.conf import Conf
from raypipe.core.config import Where
from raypipe.core.errors import RaypipeError
from raypipe.recipes.recipe import Recipe
from raypipe.runs.cluster import placement
from raypipe.runs.cluster.capacity import declared_nodes, fitting
from raypipe.runs.cluster.cluster_file import Cluster

CONF = Conf((ROOT / "conf",))
FILES = ("laptop", "autoscaling", "one-gpu", "two-gpus", "eight-gpus", "autoscaling-gpus")
RECIPES = sorted(p.stem for p in (ROOT / "conf/recipes").glob("*.yaml"))
PAGE = ROOT / "docs/operations.md"
MARK = "<!-- fits: tests/support/cluster_fits.py writes from here to the end -->\n"


def recipes() -> Iterator[tuple[str, Recipe]]:
    """Every shipped recipe over the shipped models, with a commit in the place of each that is not pinned.
    What is tuned is as the recipe that it is a variant of: an adapter has some megabytes."""
    tree = config.read_yaml(CONF.file("models.yaml"))
    for entry in tree.values():
        if entry.get("revision", "") is None:
            entry["revision"] = "0" * 40
    with TemporaryDirectory() as folder:
        models = Path(folder) / "models.yaml"
        models.write_text(yaml.safe_dump(tree))
        for name in RECIPES:
            if not name.endswith("-tuned"):
                yield name, load_recipe(name, str(models), CONF)


def cluster(name: str) -> Cluster:
    path = CONF.find("clusters", name)
    return config.build(Cluster, config.read_yaml(path), Where(str(path)))


def fit(recipe: Recipe, written: Cluster) -> tuple[Cluster, list[placement.Placement]]:
    """The sized file and what runs where, as an eval has it. Raises what an eval would raise."""
    asked = placement.asked_by(recipe)
    own = [m for m in asked if m.loader == "vllm"]
    if own and written.engines is None:
        raise RaypipeError("no `engines`")
    sized = fitting(placement.sharing(written, asked), own, declared_nodes(written))
    placement.refuse(sized, recipe.embedders(), asked)
    return sized, placement.placement(sized, recipe.embedders(), asked)


def cell(recipe: Recipe, written: Cluster) -> str:
    """What a reader wants to know of one recipe on one file, in a few words."""
    try:
        sized, placed = fit(recipe, written)
    except RaypipeError as e:
        return short(str(e))
    engines = [p for p in placed if p.name.startswith("engines ")]
    if sized.device == "cpu":
        gib = sum(p.required_gib * p.actors for p in engines)
        return f"fits, model {gib:.0f} GiB" if engines else "fits"
    answers = placed[-1]
    room = f"{answers.required_gib:.0f}/{answers.available_gib:.0f} GiB"
    if not engines:
        return room
    assert sized.engines is not None
    each, most = sized.engines.count, sized.engines.most
    count = "+".join([str(each) if each == most else f"{each}-{most}"] * len(engines))
    return f"{count} : {answers.actors}, {room}"


def short(message: str) -> str:
    known = {
        "no `engines`": "no `engines`",
        "float16 is not computed on a CPU": "no: float16 needs a GPU",
        "GPU in all = ": "no: too few GPUs",
    }
    found = next((said for part, said in known.items() if part in message), None)
    return found or f"no: {re.sub(r'[.] .*', '', message)}"


def table() -> str:
    """The page's table, in Markdown."""
    files = {name: cluster(name) for name in FILES}
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, recipe in recipes():
        rows.setdefault(tuple(cell(recipe, file) for file in files.values()), []).append(f"`{name}`")
    lines = [["recipe", *(f"`{name}`" for name in FILES)], ["---"] * (len(FILES) + 1)]
    lines += [[", ".join(names), *cells] for cells, names in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + "\n" + table())
