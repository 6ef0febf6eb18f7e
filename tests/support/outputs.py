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
from typing import Any, NotRequired, get_type_hints

import output_types as parts
from checkout import ROOT
from output_types import listed, printed, record
from pydantic import TypeAdapter

from raypipe.api.bench import BenchReport
from raypipe.api.compare import CompareResult
from raypipe.api.data import ParsedFile, Preview
from raypipe.api.experiments import RepeatsResult, SweepResult
from raypipe.api.forget import ForgetResult
from raypipe.api.look import LossesResult, Shape
from raypipe.api.machine import EnvironmentResult
from raypipe.api.made_data import ExamplePoolResult, QuestionsPlan
from raypipe.api.models import ModelAddResult, ModelFetchResult, ModelNeedsResult
from raypipe.api.reproduce import ReproduceResult, Reproductions
from raypipe.api.starting_points import ProjectResult
from raypipe.api.validate import ValidateResult
from raypipe.api.view import RunsResult
from raypipe.contrib.crag.api.graphs import FactsResult
from raypipe.contrib.crag.api.kg_refresh import RefreshProposal
from raypipe.contrib.crag.api.kg_score import CallRate
from raypipe.contrib.world.collection import CollectionSummary
from raypipe.contrib.world.write import SynthSummary
from raypipe.evaluation.fault_budget import RowCounts, RowFault
from raypipe.evaluation.fit_decide import DecideFitReport
from raypipe.evaluation.fit_fuse import FuseFitReport
from raypipe.evaluation.judge_check import JudgeCheck
from raypipe.metrics.certainty import Interval
from raypipe.metrics.crag import CragScore, Rule
from raypipe.metrics.ranking import MAP_CUT_20_MIN, MEASURES
from raypipe.readers import BadLine, ReadCounts
from raypipe.recipes.check import StepCheck
from raypipe.runs.changes import Changes
from raypipe.runs.explain import Explanation
from raypipe.runs.plan.assumed import AssumedPlan
from raypipe.runs.prune import Removal
from raypipe.runs.report import JudgeLine, ReplacedRows

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
    "plan": parts.PlanOutput
    | printed(
        "AssumedOutput",
        "`plan --assume --json`.",
        **{n: hint for n, hint in get_type_hints(AssumedPlan).items() if n != "usd_per_hour"},
        hours=Interval | None,  # on the clock; null: a step was measured by no run
        usd=Interval | None,  # of the machines; null: not known
    ),
    "index": parts.StepCounts,
    "ann": printed("AnnOutput", "`ann --json`.", recipe=str, stages=listed(parts.AnnLine)),
    "answer": parts.StepCounts,
    "eval": parts.Eval | printed("RepeatsOutput", "", RepeatsResult),
    "reprocess": printed(
        "Reprocess",
        "`reprocess --json`.",
        plan=parts.PlanOutput,
        report=parts.Eval,
        changes=Changes | None,  # null: no earlier run of this data; changes.json in a run's folder
    ),
    "sweep": printed("SweepOutput", "`sweep --json`, and sweep.json in its folder.", SweepResult),
    "labels": parts.LabelsOutput | parts.PlanOutput,
    "fit decide": printed("DecideFitOutput", "", DecideFitReport, file=str),
    "fit fuse": printed("FuseFitOutput", "", FuseFitReport, file=str),
    "finetune": parts.Finetuned | parts.FinetunePlan,
    "why": Explanation,
    "faults": printed(
        "Faults",
        "`faults --json`.",
        run=str,  # "": of no run, but of all that was read into the store
        rows=list[RowCounts],
        faults=list[RowFault],
    ),
    "losses": printed("LossesOutput", "`losses --json`.", LossesResult, questions=listed(parts.Lost)),
    "compare": printed("Comparisons", "`compare --json`: each run against the first.", CompareResult),
    "view": printed("RunHeaders", "`view --json`: finished runs, the latest first.", RunsResult),
    "judge check": printed("JudgeCheckOutput", "", JudgeCheck),
    "judge pick": printed(
        "ToLabel",
        "`judge pick --json`: answers that were written for people to label.",
        file=str,
        random=int,  # drawn at random
        chosen=int,  # of which two measures say the opposite
    ),
    "export": printed(
        "Export",
        "`export --json`.",
        file=str,  # of mlflow: the address of the tracking server
        shape=Shape,
        lines=NotRequired[int],  # of a file
        failed=NotRequired[int],  # questions that failed, of which a submission says "i don't know"
        params=NotRequired[int],  # of mlflow, as the next four
        metrics=NotRequired[int],
        artifacts=NotRequired[int],
        run=NotRequired[str],  # its id there
        there=NotRequired[bool],  # it was there already, and nothing was written
    ),
    "reproduce": printed(
        "ReproduceOutput",
        "`reproduce NAME --check --json`.",
        ReproduceResult,
        numbers=listed(parts.Number),
    )
    | printed("ReproductionsOutput", "`reproduce --json`: what can be run.", Reproductions),
    "score crag": printed(
        "CragScoreOutput",
        "`score crag --json`.",
        CragScore,
        rule=Rule,
        interval=Interval | None,
        rate_intervals=dict[str, Interval],  # accuracy, hallucination, missing; none: nothing was scored
        bounds=Interval | None,
        answer_words=float | None,  # mean words of an answer that does not abstain; null: there is none
        controls=dict[str, CragScore],
        slices=listed(parts.SliceScore),
        judge=JudgeLine | None,  # null: none was asked now
        trim=str,  # how the predictions were cut; "": not
        people=int,  # verdicts that people's labels changed
        normalized=dict[str, int],  # what was normalized on reading -> how often
    ),
    "score qa": printed(
        "QaScoreOutput",
        "`score qa --json`.",
        lead=str,  # the measure of the slices
        measures=listed(parts.MeasureMean),
        measure_slices=listed(parts.MeasureSliceMean),
        normalized=dict[str, int],  # what was normalized on reading -> how often
    ),
    "score qasper": printed(
        "QasperScoreOutput",
        **{
            "Answer F1": float,
            "Answer F1 by type": dict[str, float],  # extractive, abstractive, boolean, none
            "Evidence F1": float,
            "Missing predictions": int,  # questions that count 0
        },
    ),
    "score ranking": printed(
        "RankingScoreOutput",
        **{name: float | None for name in (*MEASURES, MAP_CUT_20_MIN)},
        queries=int,  # that are judged
        unranked=list[str],
        unjudged=list[str],
        per_query=NotRequired[dict[str, dict[str, float]]],
    ),
    "promote": parts.LiveRelease,
    "rollback": parts.LiveRelease,
    "releases": printed(
        "Releases",
        "`releases --json`, oldest first.",
        releases=listed(record("_ReleaseLine", **parts.ReleaseLine)),
    ),
    "prune": printed("Prune", "`prune --json`.", dry_run=bool, removed=list[Removal]),
    "forget": printed("Forget", "`forget --json`.", ForgetResult),
    "ask": parts.Ask,
    "doctor": printed("Doctor", "`doctor --json`.", EnvironmentResult),
    "init": printed("Project", "`init --json`.", ProjectResult),
    "check-step": printed("StepCheckOutput", "`check-step --json`.", StepCheck, holds=bool),
    "validate": printed("Validate", "`validate --json`.", ValidateResult),
    "standins": printed(
        "StandinFolders",
        "`standins DIR --json`.",
        chat=str,
        adapters=dict[str, str],  # name -> folder
        embedder=str,
        reranker=str,
        instructor=str,  # an embedder of the T5 shape
    ),
    "models": printed("ModelNeeds", "`models RECIPE --json`.", ModelNeedsResult)
    | printed("ModelAdded", "`models add SOURCE --json`.", ModelAddResult)
    | printed("ModelFetched", "`models fetch NAME --json`.", ModelFetchResult),
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
    "facts build": printed("FactsTableOutput", "`facts build --json`.", FactsResult),
    "bench": printed("BenchOutput", "`bench --json`.", BenchReport, machine=dict[str, str | int]),
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
