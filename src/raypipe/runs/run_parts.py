"""Parts of a run's record (`record.Run`), and the paths of a run's files.

Imports nothing heavy, so that a file of predictions can be scored without Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

JSON_FORMAT = 1  # format of all output that commands print for programs: docs/schemas


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated cost of a run, by its plan. Ranges are (lowest, highest)."""

    calls: tuple[float, float] | None  # calls to models and graphs; None: not known
    max_calls: int | None  # upper bound, without repeats after failures; None: not known
    tokens: tuple[float, float] | None  # tokens of prompts and replies; None: not known
    hours: tuple[float, float] | None  # computing time on the clock; None: no rate was measured
    gpu_hours: tuple[float, float] | None  # hours of the GPUs held during that time
    usd: tuple[float, float] | None  # price of all priced resources; None: none has a price, or not known


@dataclass(frozen=True, slots=True)
class Costs:
    """Actual cost of one attempt of a run."""

    calls: int  # calls to models and graphs
    tokens: int  # tokens of prompts and replies
    hours: float  # computing time on the clock
    gpu_hours: float  # hours of the GPUs held during that time
    usd: float | None  # price of all priced resources, machines by wall time; None: no prices


@dataclass(frozen=True, slots=True)
class CostReport:
    """Estimated and actual cost of one attempt. Excludes the work of earlier attempts."""

    estimate: Estimate
    actual: Costs
    unpriced: tuple[str, ...]  # without a price, so not in `usd`: machines, models behind endpoints


@dataclass(frozen=True, slots=True)
class StepLine:
    """Work of one step in a run."""

    step: str  # its name in the recipe
    rows: int  # rows that reached the step, skipped ones included
    planned: int | None  # most calls by the plan, plus `resumed`; None: not known
    computed: int  # calls made to models or graphs; for parse and split: sources processed
    cached: int  # calls answered from the memo
    skipped: int  # rows kept out by the step's gate or by an earlier fault
    faults: int  # rows that failed in the step
    seconds: float  # wall time inside the step, summed over its actors; excludes loading models
    prompt_tokens: int = 0  # tokens of prompts of computed chats; cached chats count none
    cached_tokens: int = 0  # prompt tokens found in the engine's prefix cache
    generated_tokens: int = 0  # tokens of the replies of computed chats
    resumed: int = 0  # part of `computed` that earlier, stopped attempts did
    loading: float = 0.0  # seconds of loading models that this step called first, summed over its actors
    thought_tokens: int = 0  # generated tokens of thoughts before the answer; approximate
    expected: tuple[int, int] | None = None  # likely calls by the plan, plus `resumed`; None: not known
    reasons: tuple[str, ...] = ()  # reasons of the planned calls: row, model, prompt, upstream, ...


@dataclass(frozen=True, slots=True)
class JudgeLine:
    """Calls of a run's judge, and their outcome."""

    model: str  # its name in models.yaml; for a judge from outside: its path and source
    pairs: int  # predictions with a truth that the rule cannot decide
    computed: int  # calls made
    cached: int  # calls answered from the memo
    unreadable: int  # predictions counted as hallucination because no reply was a judgement
    no_reply: int  # predictions left unscored because the judge gave no reply
    faults: Mapping[str, int]  # reason -> calls without a reply
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    cut: int = 0  # calls whose reply reached its length limit
    max_tokens: int = 0  # length limit of a reply; 0: a judge from outside


@dataclass(frozen=True, slots=True)
class LabelLine:
    """People's verdicts on a run's answers. They outrank judges and rules."""

    file: str
    labels: int  # labels in the file
    used: int  # labels that call an answer of the run right or wrong
    changed: int  # verdicts of the run that come from labels


@dataclass(frozen=True, slots=True)
class AnswerCut:
    """Length limit of an answer, and the tokenizer that counts."""

    tokens: int  # length limit
    tokenizer: str  # its name in models.yaml
    weights: str  # identity of the tokenizer's files


@dataclass(frozen=True, slots=True)
class FaultCount:
    """Rows with faults, by cause."""

    step: str
    reason: str
    transient: bool  # True: the rows are pending, and the next run tries them again
    rows: int
    recovered: bool = False  # True: another step answered the rows
    detail: str = ""  # detail of the first row's fault, such as a server's message; "": none

    @property
    def then(self) -> str:
        """Outcome of the rows, for people."""
        return "answered by another step" if self.recovered else "tried again" if self.transient else "lost"


@dataclass(frozen=True, slots=True)
class ReplacedRows:
    """Ingested rows that replaced stored rows with the same ids."""

    table: Literal["questions", "documents"]  # a gold belongs to its question
    rows: int
    ids: tuple[str, ...]  # the first ids
    files: tuple[str, ...]  # names of the files that the replaced rows came from; empty: not recorded

    def sentence(self) -> str:
        """Describes the replacement in a sentence, for people."""
        of = f" that {', '.join(self.files)} had" if self.files else ""
        ids = ", ".join([*self.ids, *["..."] * (self.rows > len(self.ids))])
        mend = "Their ids are the same; to keep both, use other ids or another --store"
        return f"replaced {self.rows} {self.table}{of}: {ids}. {mend}"


@dataclass(frozen=True, slots=True)
class FitLine:
    """A fit of a step's numbers or of an adapter, with the number of scored questions that it has seen. A
    recipe scores better on questions that its fit has seen than on others."""

    step: str  # its name in the recipe, or `adapter NAME of STEP`
    data: str  # name and digest of the fit's data
    split: str  # rows of the data that the fit used
    metric: str  # the fitted measure
    recipe: str  # the recipe of the fit; "": any
    n: int | None  # questions used for the fit; None: not recorded
    seen: int | None  # scored questions of this run that were used for the fit; None: not known
    of: int  # all scored questions of this run


@dataclass(frozen=True, slots=True)
class CutReplies:
    """Replies of a step, or of the judge, that reached their length limit."""

    step: str  # its name in the recipe, or `the judge`
    cut: int  # replies at their limit
    replies: int  # all replies
    tokens: int  # length limit of a reply

    def sentence(self) -> str:
        """Describes the cut replies in a sentence, for people."""
        return f"{self.cut} of {self.replies} replies of {self.step} were cut at {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class FlipRate:
    """Rate at which engines' replies differ if the same chats are sent many at a time, and one by one."""

    asked: int  # replies to chats that were sent twice
    differ: int  # replies that differ the second time
    engines: tuple[str, ...]  # identities of their models
    run: str  # run that measured the rate, on this machine

    def sentence(self) -> str:
        """Describes the measured rate in a sentence, for people."""
        differ = f"{self.differ} of {self.asked} replies differ when their chats are asked again one by one"
        return f"flip rate {self.differ / self.asked:.2f}: {differ}, as an endpoint asks"


EVAL_AGAIN = "The same `raypipe eval` again writes it, and computes nothing that is stored"


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run, with the paths of its files."""

    path: Path
    predictions: Path = Path("predictions.jsonl")  # a line per question
    results: Path = Path("results.parquet")  # a row per question: evaluation.result_table.SCHEMA
    page: Path = Path("report.html")  # the report for people
    changes: Path = Path("changes.json")  # changed answers against the earlier run
    graphs: Path = Path("graphs.txt")  # operators of each Ray Data graph, with their rows and seconds
    timeline: Path = Path("timeline.json")  # work of each process (Chrome's format); with RAY_PROFILING=1
    record: Path = Path("run.json")  # `record.Run`; written last: a folder with it is complete

    def __post_init__(self) -> None:
        for file in fields(self)[1:]:
            object.__setattr__(self, file.name, self.path / getattr(self, file.name))

    def files(self) -> list[Path]:
        return [getattr(self, file.name) for file in fields(self)[1:]]
