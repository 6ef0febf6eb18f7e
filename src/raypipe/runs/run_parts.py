"""Parts of the record of a run (`record.Run`): what its steps, judge and fits did and cost; and its files.

Loads nothing heavy, so that scoring a file of predictions needs no Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

JSON_FORMAT = 1  # of what commands print for programs: docs/schemas


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimates of a run by its plan, each a range."""

    calls: tuple[float, float] | None  # to models and graphs; None: nothing says
    max_calls: int | None  # no run makes more; None: not known
    tokens: tuple[float, float] | None  # of prompts and replies; None: not known
    hours: tuple[float, float] | None  # of computing, on the clock; None: no rate was measured
    gpu_hours: tuple[float, float] | None  # of GPUs that are held meanwhile
    usd: tuple[float, float] | None  # of what has a price; None: nothing has, or it cannot be told


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a run, in this attempt."""

    calls: int  # to models and graphs
    tokens: int  # of prompts and replies
    hours: float  # of computing, on the clock
    gpu_hours: float  # of GPUs that were held meanwhile
    usd: float | None  # of what has a price, machines by wall time; None: nothing has a price


@dataclass(frozen=True, slots=True)
class CostReport:
    """Estimate against actual. Of one attempt: what earlier ones did is in neither."""

    estimate: Estimate
    actual: Costs
    unpriced: tuple[str, ...]  # what has no price, so is not in `usd`: machines, models behind endpoints


@dataclass(frozen=True, slots=True)
class StepLine:
    """Work of a step of the recipe."""

    step: str  # its name in the recipe
    rows: int  # that reached it, let in or not
    planned: int | None  # most calls by the plan, never fewer than computed; None: it could not say
    computed: int  # model or graph calls made; for parse and split: sources that were worked on
    cached: int  # calls answered from the memo
    skipped: int  # rows that its gate, or an earlier fault, kept out
    faults: int  # rows it could not do
    seconds: float  # wall time inside the step, summed over its actors, without loading models
    prompt_tokens: int = 0  # of the chats that were computed; cached ones cost none
    cached_tokens: int = 0  # of these, found in the engine's prefix cache
    generated_tokens: int = 0  # of the replies
    resumed: int = 0  # of what was computed: by earlier attempts, which were stopped
    loading: float = 0.0  # seconds of loading the models that it was the first to ask, summed over its actors
    thought_tokens: int = 0  # of the generated ones: what models thought before they answered, about
    expected: tuple[int, int] | None = None  # calls that the plan held for likely; None: it could not say
    reasons: tuple[str, ...] = ()  # why the plan had it make calls: row, model, prompt, upstream, ...


@dataclass(frozen=True, slots=True)
class JudgeLine:
    """The judge of a run: its calls and their outcome."""

    model: str  # its name in models.yaml; of a judge from outside its path and source
    pairs: int  # predictions with a truth that the rule leaves to a judge
    computed: int  # calls made
    cached: int  # calls answered from the memo
    unreadable: int  # predictions whose verdict is hallucination because no reply was a judgement
    no_reply: int  # predictions that stay unscored because the judge gave no reply
    faults: Mapping[str, int]  # reason -> calls without a reply
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    cut: int = 0  # calls whose reply ended by its length
    max_tokens: int = 0  # that each was allowed; 0: of a judge from outside


@dataclass(frozen=True, slots=True)
class LabelLine:
    """People's verdicts of a run: they outrank judges and rules."""

    file: str
    labels: int  # in the file
    used: int  # of these, how many call an answer of the run right or wrong
    changed: int  # verdicts of the run that are people's


@dataclass(frozen=True, slots=True)
class AnswerCut:
    """Limit of an answer, and the tokenizer that counts."""

    tokens: int  # kept of an answer
    tokenizer: str  # its name in models.yaml
    weights: str  # its identity


@dataclass(frozen=True, slots=True)
class FaultCount:
    """Rows with faults, by cause."""

    step: str
    reason: str
    transient: bool  # True: pending, tried again by the next run
    rows: int
    recovered: bool = False  # True: another step answered them
    detail: str = ""  # of the first of them: what a server said; "": nothing

    @property
    def then(self) -> str:
        """Says for people whether they are tried again."""
        return "answered by another step" if self.recovered else "tried again" if self.transient else "lost"


@dataclass(frozen=True, slots=True)
class ReplacedRows:
    """Ingested rows that took the place of others with their ids."""

    table: Literal["questions", "documents"]  # a gold belongs to its question
    rows: int
    ids: tuple[str, ...]  # the first of them
    files: tuple[str, ...]  # names of those that had had them; none: no note is kept of them

    def sentence(self) -> str:
        """Returns what happened, for people."""
        of = f" that {', '.join(self.files)} had" if self.files else ""
        more = ", ..." if self.rows > len(self.ids) else ""
        return (
            f"replaced {self.rows} {self.table}{of}: {', '.join(self.ids)}{more}. Their ids are the same; to "
            "keep both, use other ids or another --store"
        )


@dataclass(frozen=True, slots=True)
class FitLine:
    """Fitted numbers of a step or an adapter, and the scored questions of the run that the fit has seen.
    Scores of these are better than those of other questions would be."""

    step: str  # its name in the recipe, or `adapter NAME of STEP`
    data: str  # what it was fitted on
    split: str
    metric: str  # what was fitted
    recipe: str  # that it was fitted to; "": any
    n: int | None  # questions that it was fitted on; None: not kept
    seen: int | None  # scored questions of this run that were among them; None: not known
    of: int  # scored questions of this run


@dataclass(frozen=True, slots=True)
class CutReplies:
    """Replies of one step, or of the judge, that ended by their length."""

    step: str  # its name in the recipe, or `the judge`
    cut: int
    replies: int
    tokens: int  # that each was allowed

    def sentence(self) -> str:
        """Returns what happened, for people."""
        return f"{self.cut} of {self.replies} replies of {self.step} were cut at {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class FlipRate:
    """Replies of engines that were asked twice: many at a time, and again one by one."""

    asked: int
    differ: int
    engines: tuple[str, ...]  # identities of their models
    run: str  # that measured it, on this machine

    def sentence(self) -> str:
        """Says for people what was measured."""
        return (
            f"flip rate {self.differ / self.asked:.2f}: {self.differ} of {self.asked} replies differ when "
            f"their chats are asked again one by one, as an endpoint asks"
        )


FILES = {
    "predictions": "predictions.jsonl",
    "results": "results.parquet",
    "page": "report.html",
    "changes": "changes.json",
    "graphs": "graphs.txt",
    "timeline": "timeline.json",
    "record": "run.json",
}


EVAL_AGAIN = "The same `raypipe eval` again writes it, and computes nothing that is stored"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's folder, and the files in it."""

    path: Path
    predictions: Path = field(init=False)  # a line for each question
    results: Path = field(init=False)  # a row for each question: evaluation.result_table.SCHEMA
    page: Path = field(init=False)  # the report for people
    changes: Path = field(init=False)  # of answers since the run before
    graphs: Path = field(init=False)  # operators of each graph of Ray Data, with their rows and seconds
    timeline: Path = field(init=False)  # of each process, in Chrome's trace format; with RAY_PROFILING=1
    record: Path = field(init=False)  # `record.Run`; written last: with it a folder is whole

    def __post_init__(self) -> None:
        for name, file in FILES.items():
            object.__setattr__(self, name, self.path / file)
