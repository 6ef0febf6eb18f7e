"""What `--json` prints of single questions, machines, models, steps, files and benches."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import with_config
from typing_extensions import TypedDict

from raypipe.api.bench import BenchResult
from raypipe.api.machine import Finding
from raypipe.api.model_files import ModelNeed
from raypipe.api.run_outputs import (
    STRICT,
)
from raypipe.api.validate import CheckedFile, Problem
from raypipe.recipes.check import Half, LawCheck, Lock
from raypipe.serving.http.reply_types import AnswerResponse


@with_config(STRICT)
class Ask(AnswerResponse):
    """`ask --json`: what the endpoint responds with, and a format."""

    format: Literal[2]


@with_config(STRICT)
class Doctor(TypedDict):
    """`doctor --json`."""

    format: Literal[2]
    fine: bool  # nothing is missing
    findings: list[Finding]


@with_config(STRICT)
class StepCheckOutput(TypedDict):
    """`check-step --json`."""

    format: Literal[2]
    step: str  # its path
    source: str  # digest of its source file
    half: Half
    version: int
    reads: list[str]
    writes: list[str]
    bounded: bool  # false: a plan cannot say how many calls it makes
    laws: list[LawCheck]
    lock: Lock
    lock_file: str
    holds: bool


@with_config(STRICT)
class ModelAdded(TypedDict):
    """`models add SOURCE --json`."""

    format: Literal[2]
    name: str  # in the models file
    file: str  # that it was added to
    entry: dict[str, Any]  # its fields, as conf/schemas/models.json has them
    bytes: int | None  # of the files that are read; None: not known
    memory_gib: float | None  # of its weights, once loaded; None: not known
    context_gib: float | None  # keys and values of one reply of full length
    licence: str  # as its repository says it; "": it says nothing
    gated: bool  # whether its owner admits who may download it
    get: str  # the command that downloads it; "": nothing is to be downloaded
    endpoints: dict[str, Any]  # what belongs under `endpoints` of the cluster file


@with_config(STRICT)
class ModelNeeds(TypedDict):
    """`models RECIPE --json`."""

    format: Literal[2]
    recipe: str  # its name
    models: list[ModelNeed]


@with_config(STRICT)
class Project(TypedDict):
    """`init --json`."""

    format: Literal[2]
    folder: str
    files: list[str]  # that were written, relative to the folder


@with_config(STRICT)
class StandinFolders(TypedDict):
    """`models standins DIR --json`."""

    format: Literal[2]
    chat: str
    adapters: dict[str, str]  # name -> folder
    embedder: str
    reranker: str
    instructor: str  # an embedder of the T5 shape


@with_config(STRICT)
class Validate(TypedDict):
    """`validate --json`."""

    format: Literal[2]
    files: list[CheckedFile]
    problems: list[Problem]


@with_config(STRICT)
class BenchOutput(TypedDict):
    """`bench --json`."""

    format: Literal[2]
    day: str  # YYYY-MM-DD
    commit: str  # of the checkout; "" outside of git
    machine: dict[str, str | int]  # processor, cores, and the limits that a row needed
    quick: bool  # sizes of a test
    results: list[BenchResult]


@with_config(STRICT)
class _AnnStage(TypedDict):
    stage: str
    built: bool  # by this command; false: its index was there
    index: str  # its name, which no other build has
    top: int
    probes: int
    refine: int
    questions: int  # on which recall was measured
    mean: float
    fifth: float  # 5 % of the questions have at most this recall
    worst: float
    worst_question: str  # its id


@with_config(STRICT)
class AnnOutput(TypedDict):
    """`ann --json`."""

    format: Literal[2]
    recipe: str
    stages: list[_AnnStage]
