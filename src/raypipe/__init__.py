"""Answers whole datasets of questions on a Ray cluster, and single questions with the same logic.

The Python API: what `raypipe COMMAND` does, as functions. Each name is imported when it is first used, so
`import raypipe` imports no library. docs/python.md shows it.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # read by type checkers and editors, and as text below
    from raypipe.api.bench import bench as bench
    from raypipe.api.check import check as check
    from raypipe.api.compare import compare as compare
    from raypipe.api.data import ingest as ingest
    from raypipe.api.data import parse_html as parse_html
    from raypipe.api.data import preview as preview
    from raypipe.api.experiments import evaluate_repeatedly as evaluate_repeatedly
    from raypipe.api.experiments import fit_decide as fit_decide
    from raypipe.api.experiments import fit_fuse as fit_fuse
    from raypipe.api.experiments import sweep as sweep
    from raypipe.api.forget import forget as forget
    from raypipe.api.judged_runs import check_judge as check_judge
    from raypipe.api.judged_runs import pick_to_label as pick_to_label
    from raypipe.api.look import export_run as export_run
    from raypipe.api.look import faults as faults
    from raypipe.api.look import fields as fields
    from raypipe.api.look import finished_run as finished_run
    from raypipe.api.look import losses as losses
    from raypipe.api.look import why as why
    from raypipe.api.machine import check_environment as check_environment
    from raypipe.api.made_data import build_examples as build_examples
    from raypipe.api.made_data import make_questions as make_questions
    from raypipe.api.models import model_needs as model_needs
    from raypipe.api.plans import assume as assume
    from raypipe.api.plans import plan as plan
    from raypipe.api.questions import ask as ask
    from raypipe.api.questions import rank as rank
    from raypipe.api.questions import walk as walk
    from raypipe.api.ray_data import dataset as dataset
    from raypipe.api.ray_data import step as step
    from raypipe.api.release import promote as promote
    from raypipe.api.release import prune as prune
    from raypipe.api.release import releases as releases
    from raypipe.api.release import rollback as rollback
    from raypipe.api.reproduce import reproduce as reproduce
    from raypipe.api.results import Result as Result
    from raypipe.api.run import answer as answer
    from raypipe.api.run import evaluate as evaluate
    from raypipe.api.run import index as index
    from raypipe.api.schemas import schema as schema
    from raypipe.api.scores import score_crag as score_crag
    from raypipe.api.scores import score_qa as score_qa
    from raypipe.api.scores import score_qasper as score_qasper
    from raypipe.api.scores import score_ranking as score_ranking
    from raypipe.api.session import Session as Session
    from raypipe.api.session import from_environment as from_environment
    from raypipe.api.session import load_recipe as load_recipe
    from raypipe.api.session import swap_steps as swap_steps
    from raypipe.api.starting_points import demo_data as demo_data
    from raypipe.api.starting_points import download_crag as download_crag
    from raypipe.api.starting_points import download_qasper as download_qasper
    from raypipe.api.starting_points import start_project as start_project
    from raypipe.api.view import list_runs as list_runs
    from raypipe.core.errors import RaypipeError as RaypipeError
    from raypipe.store import Store as Store

    __version__: str

_IMPORT = re.compile(r"(?m)^    from (raypipe\.\S+) import (\w+)")
EXPORTS = {name: module for module, name in _IMPORT.findall(Path(__file__).read_text(encoding="utf-8"))}
"""Exported name -> module that defines it, as the block above has them."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("raypipe")
    if name not in EXPORTS:
        raise AttributeError(f"module 'raypipe' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(EXPORTS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *EXPORTS, "__version__"})
