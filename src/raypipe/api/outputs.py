"""The JSON that programs may rely on: keys and types of each output, as JSON Schema.

The schemas are made from the classes of the `*_outputs` and from the records that are printed as they are;
`docs/schemas/` has them as files (`make schemas` writes them, a test compares them). Every object says its
format, which is raised when a key changes its name, type or meaning, or is removed; a new key does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from raypipe.api.data_outputs import (
    ExamplePoolOutput,
    Faults,
    Ingest,
    IngestPreview,
    ParseLine,
    Questions,
    Synth,
    SynthCollection,
)
from raypipe.api.finetune_outputs import Finetuned, FinetunePlan
from raypipe.api.graph_outputs import FactsTableOutput, GraphCalls, GraphRefresh, KgScore
from raypipe.api.release_outputs import Forget, LiveRelease, Prune, Releases, Trials, Usage
from raypipe.api.run_outputs import (
    AssumedOutput,
    Eval,
    PlanOutput,
    Reprocess,
    StepCounts,
)
from raypipe.api.score_outputs import (
    Comparisons,
    CragScoreOutput,
    DecideFitOutput,
    Export,
    FuseFitOutput,
    JudgeCheckOutput,
    LabelsOutput,
    LossesOutput,
    QaScoreOutput,
    QasperScoreOutput,
    RankingScoreOutput,
    RepeatsOutput,
    ReproduceOutput,
    ReproductionsOutput,
    RunHeaders,
    SweepOutput,
    ToLabel,
    WrittenView,
)
from raypipe.api.tool_outputs import (
    AnnOutput,
    Ask,
    BenchOutput,
    Doctor,
    ModelAdded,
    ModelNeeds,
    Project,
    StandinFolders,
    StepCheckOutput,
    Validate,
)
from raypipe.runs.explain import Explanation

OUTPUTS: Mapping[str, Any] = {
    "synth": Synth | SynthCollection,
    "ingest": Ingest | IngestPreview,
    "questions": Questions,
    "examples": ExamplePoolOutput,
    "parse": ParseLine,
    "plan": PlanOutput | AssumedOutput,
    "index": StepCounts,
    "ann": AnnOutput,
    "answer": StepCounts,
    "eval": Eval | RepeatsOutput,
    "reprocess": Reprocess,
    "sweep": SweepOutput,
    "labels": LabelsOutput | PlanOutput,
    "fit decide": DecideFitOutput,
    "fit fuse": FuseFitOutput,
    "finetune": Finetuned | FinetunePlan,
    "why": Explanation,
    "faults": Faults,
    "losses": LossesOutput,
    "compare": Comparisons,
    "view": RunHeaders | WrittenView,
    "judge check": JudgeCheckOutput,
    "judge pick": ToLabel,
    "export": Export,
    "reproduce": ReproduceOutput | ReproductionsOutput,
    "score crag": CragScoreOutput,
    "score qa": QaScoreOutput,
    "score qasper": QasperScoreOutput,
    "score ranking": RankingScoreOutput,
    "promote": LiveRelease | Trials,
    "rollback": LiveRelease,
    "releases": Releases,
    "trial": Trials,
    "prune": Prune,
    "forget": Forget,
    "usage": Usage,
    "ask": Ask,
    "doctor": Doctor,
    "init": Project,
    "check-step": StepCheckOutput,
    "validate": Validate,
    "models": ModelNeeds | StandinFolders | ModelAdded,
    "kg run": GraphCalls,
    "kg score": KgScore,
    "kg refresh": GraphRefresh,
    "facts build": FactsTableOutput,
    "bench": BenchOutput,
}
"""Command -> what its `--json` prints."""


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """Command -> JSON Schema of its output."""
    for name, output in OUTPUTS.items():
        made = TypeAdapter(output).json_schema(mode="serialization")
        yield name, {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def file_of(command: str) -> str:
    """The name of a schema's file.

    >>> file_of("score crag")
    'score-crag.json'
    """
    return f"{command.replace(' ', '-')}.json"


def write_schemas(folder: Path) -> None:
    """Writes one file per output."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas():
        (folder / file_of(name)).write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
