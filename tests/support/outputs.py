"""The JSON that programs may rely on: keys and types of each output, as JSON Schema.

The schemas are made from the records that are printed. `python tests/support/outputs.py` (`make schemas`)
writes them to docs/schemas, and a test compares them. Every object says its format, which is raised when a
key changes its name, type or meaning, or is removed; a new key does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import GenericAlias
from typing import Any

import output_types as parts
from checkout import ROOT
from output_types import listed, printed, record
from pydantic import TypeAdapter

from raypipe.api.bench import BenchReport, CommitReport
from raypipe.api.check import CheckedFile, Problem
from raypipe.api.compare import CompareResult
from raypipe.api.data import ParsedFile, Preview
from raypipe.api.experiments import DecideFitResult, FuseFitResult, RepeatsResult, SweepResult
from raypipe.api.finished_runs import ExportResult, FieldsResult, LossesResult, RunsResult
from raypipe.api.machine import EnvironmentResult
from raypipe.api.made_data import ExamplePoolResult, QuestionsPlan
from raypipe.api.models import AdoptionResult, ModelAddResult, ModelFetchResult, ModelNeedsResult
from raypipe.api.plans import AssumedResult
from raypipe.api.release import ForgetResult, PruneResult, ReleasesResult
from raypipe.api.reproduce import ReproduceResult, Reproductions
from raypipe.api.scores import CragScoreResult, PickResult, QaScoreResult
from raypipe.api.starting_points import ProjectResult
from raypipe.contrib.crag.api.graphs import FactsResult, GraphResult
from raypipe.contrib.crag.api.kg_refresh import RefreshProposal
from raypipe.contrib.crag.api.kg_score import CallRate
from raypipe.contrib.world.collection import CollectionSummary
from raypipe.contrib.world.write import SynthSummary
from raypipe.evaluation.fault_budget import RowCounts, RowFault
from raypipe.evaluation.judge_check import JudgeCheck
from raypipe.readers import BadLine, ReadCounts
from raypipe.recipes.check import StepCheck
from raypipe.runs.changes import Changes
from raypipe.runs.explain import Explanation
from raypipe.runs.record import Run
from raypipe.runs.run_parts import ReplacedRows

OUTPUTS: Mapping[str, Any] = {
    "synth": printed("Synth", "`synth --json`.", SynthSummary)
    | printed("SynthCollection", "`synth --papers N --json`.", CollectionSummary),
    "ingest": printed(
        "Ingest",
        store=str,  # URI
        again=bool,  # true: the same bytes had been read before
        questions=int,
        kind=str,  # of the data; "": read by a raypipe that had no kinds
        read_by=str,  # one process, or how many tasks; "": a folder of documents
        **{f.name: int for f in fields(ReadCounts)},
        reasons=dict[str, int],  # why lines and pages were omitted -> how many
        replaced=list[ReplacedRows],  # that took the place of others with their ids
        bad_lines=list[BadLine],  # the first lines that could not be read, or lost a page
    )
    | printed("IngestPreview", "`ingest --dry-run --json`: how files would be read.", Preview),
    "questions": printed(
        "Questions",
        "`questions --json`.",
        plan=QuestionsPlan,
        out=str | None,  # null: a dry run
        questions=int,
        kinds=dict[str, int],
        written=int,
        rejected=dict[str, int],  # reason -> candidates
        computed=int,  # calls
        cached=int,
        first=listed(parts.MadeLine),
    ),
    "examples": printed("ExamplePoolOutput", "`examples --json`.", ExamplePoolResult),
    "parse": printed("ParseLine", "A line of `parse --json`.", ParsedFile),
    "plan": printed(
        "PlanOutput",
        "`plan --json`. A number that is not known is null.",
        **parts.PLANNED,
    )
    | printed("AssumedOutput", "`plan --assume --json`.", AssumedResult),
    "eval": Run
    | printed("RepeatsOutput", "`eval --repeats --json`.", RepeatsResult)
    | printed(
        "Reprocess",
        "`eval --changes --json`.",
        run=Run,
        changes=Changes | None,  # null: no earlier run of this data; changes.json in a run's folder
    )
    | parts.StepCounts,
    "sweep": printed("SweepOutput", "`sweep --json`, and sweep.json in its folder.", SweepResult),
    "labels": parts.LabelsOutput | printed("LabelsPlan", "`labels --dry-run --json`.", **parts.PLANNED),
    "fit decide": printed("DecideFitOutput", "`fit decide --json`.", DecideFitResult),
    "fit fuse": printed("FuseFitOutput", "`fit fuse --json`.", FuseFitResult),
    "finetune": parts.Finetuned | parts.FinetunePlan,
    "inspect": Run
    | printed("Why", "`inspect RUN ROW --json`.", Explanation)
    | printed(
        "Faults",
        "`inspect --faults --json`.",
        run=str,  # "": of no run, but of all that was read into the store
        rows=list[RowCounts],
        faults=list[RowFault],
    )
    | printed("FieldsOutput", "`inspect --fields --json`.", FieldsResult)
    | printed("LossesOutput", "`inspect --losses --json`.", LossesResult),
    "compare": printed("Comparisons", "`compare --json`: each run against the first.", CompareResult),
    "view": printed("RunHeaders", "`view --json`: finished runs, the latest first.", RunsResult),
    "judge check": printed("JudgeCheckOutput", "", JudgeCheck),
    "judge pick": printed(
        "ToLabel", "`judge pick --json`: answers that were written for people to label.", PickResult
    ),
    "export": printed("Export", "`export --json`.", ExportResult),
    "reproduce": printed("ReproduceOutput", "`reproduce NAME --check --json`.", ReproduceResult)
    | printed("ReproductionsOutput", "`reproduce --json`: what can be run.", Reproductions),
    "score crag": printed("CragScoreOutput", "`score crag --json`.", CragScoreResult),
    "score qa": printed("QaScoreOutput", "`score qa --json`.", QaScoreResult),
    "score qasper": parts.Means,
    "score ranking": parts.Means,
    "promote": parts.LiveRelease,
    "rollback": parts.LiveRelease,
    "releases": printed("Releases", "`releases --json`, oldest first.", ReleasesResult),
    "prune": printed("Prune", "`prune --json`.", PruneResult),
    "forget": printed("Forget", "`forget --json`.", ForgetResult),
    "ask": parts.Ask,
    "doctor": printed("Doctor", "`doctor --json`.", EnvironmentResult),
    "init": printed("Project", "`init --json`.", ProjectResult),
    "check": printed(
        "Check",
        "`check --json`.",
        files=list[CheckedFile],
        problems=list[Problem],
        steps=listed(record("_StepCheckOutput", "A step that was checked.", StepCheck, holds=bool)),
    ),
    "standins": printed(
        "StandinFolders",
        "`standins DIR --json`.",
        chat=str,
        adapters=dict[str, str],  # name -> folder
        embedder=str,
        reranker=str,
        instructor=str,  # an embedder of the T5 shape
        decoder=str,  # an embedder of the last token
        models=str,  # the file for --models
    ),
    "models": printed("ModelNeeds", "`models RECIPE --json`.", ModelNeedsResult)
    | printed("ModelAdded", "`models add SOURCE --json`.", ModelAddResult)
    | printed("ModelFetched", "`models fetch NAME --json`.", ModelFetchResult)
    | printed("ModelAdopted", "`models adopt NEW --json`.", AdoptionResult),
    "kg run": printed("GraphCalls", "`kg run --json`: a result for each line.", results=listed(parts.Call)),
    "kg score": printed(
        "KgScore",
        "`kg score --json`: how many written programs are the gold's.",
        questions=int,  # golds
        missing=int,  # of these, without a prediction
        extra=int,  # predictions that no gold asks for
        measures=list[CallRate],
        slices=listed(parts.CallSlice),  # by domain and question_type, where the golds have them
    ),
    "kg refresh": printed(
        "GraphRefresh",
        "`kg refresh --json`: refresh periods by domain.",
        RefreshProposal,
        seen=GenericAlias(dict, (str, record("_Observed", pairs=int, changed=int))),  # of stored replies
    ),
    "kg build": printed("GraphOutput", "`kg build --json`.", GraphResult),
    "facts build": printed("FactsTableOutput", "`facts build --json`.", FactsResult),
    "bench": printed("BenchOutput", "`bench --json`.", BenchReport, machine=dict[str, str | int])
    | printed("BenchCommitsOutput", "`bench --against COMMIT --json`.", CommitReport),
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


if __name__ == "__main__":
    for command, made in schemas():
        file = ROOT / "docs/schemas" / file_of(command)
        file.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
