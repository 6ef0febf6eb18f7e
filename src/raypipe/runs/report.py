"""The report of one run: what went in, what each step cost, how it scored; and its files.

Knows records and marks; not how a run is made, and not how a page or a table looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raypipe.core.index import AnnRecall
from raypipe.core.plain import to_json as json_of
from raypipe.core.records import FAULT, RANKED, Hit, Question
from raypipe.metrics.crag import Marks, intervals_to_json, parts_to_json
from raypipe.metrics.kinds import NOT_SCORED, MeasureSummary, RunScores
from raypipe.metrics.losses import Losses, PromptInjection, Routing
from raypipe.metrics.textfile import write_json

if TYPE_CHECKING:  # numpy, which looking at a report needs not
    from raypipe.metrics.calibration import CalibrationReport

JSON_FORMAT = 2  # of what commands print for programs: docs/schemas


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
    detail: str = ""  # of the first of them: what a server said; "": nothing, or an older raypipe wrote it


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
    """Replies of one step that ended by their length; of those that the memo has."""

    step: str  # its name in the recipe
    cut: int
    replies: int
    tokens: int  # that each was allowed

    def sentence(self) -> str:
        """What happened, for people."""
        return f"{self.cut} of {self.replies} replies of {self.step} were cut at {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class EvalReport:
    """A run over a dataset."""

    run: str  # run id
    recipe: str  # its name
    digest: str  # of the recipe
    seconds: float  # wall time from the start of the command until this report
    clock: Mapping[str, float]  # of that, seconds of each part (`counters.PARTS`); they add up
    questions: int
    citations: int
    distinct_pages: int  # not empty, equal pages once
    empty_pages: int  # citations without a page
    chunks: int
    pages_compared: int  # parsed a second time by the reference parser
    parser_fallbacks: int  # pages that the fast parser left to the reference parser
    normalized: Mapping[str, int]  # what was put right on the way in -> how often
    without_truth: int  # questions that cannot be scored: the dataset has no answer
    faults: tuple[FaultCount, ...]
    steps: tuple[StepLine, ...]  # corpus steps, then question steps, in recipe order
    marks: Marks
    answered_by: Mapping[str, int] = field(default_factory=dict)  # name of a reply -> its answers, most first
    memo_damaged: int = 0  # tables and files of the memo; what they held and a run needs is computed again
    resumed: int = 0  # parts that attempts before this one did, which were stopped; the steps count them
    judge: JudgeLine | None = None  # None: there was no judge
    labels: LabelLine | None = None  # None: no labels were given
    answer_cut: AnswerCut | None = None  # None: answers are as long as they are
    prompt_injection: PromptInjection | None = None  # orders in pages; None: the recipe has no language model
    replaced: tuple[ReplacedRows, ...] = ()  # by the files of this run when they were read
    scores: RunScores = NOT_SCORED  # what the kind of the data measures
    cost: CostReport | None = None  # None: not counted
    fits: tuple[FitLine, ...] = ()  # fitted numbers and adapters of the recipe
    unseen: MeasureSummary | None = None  # the leading measure without what a fit has seen; None: it saw none
    oracle: str = ""  # passages or answer: golds stood in the place of a stage; labels: in one; "": none
    oracle_golds: int = 0  # questions of which they did; the others ran as without
    routing: Routing | None = None  # routers and calls against golds; None: not looked at
    calibration: CalibrationReport | None = None  # of stated confidence; None: too few, or none
    losses: Losses | None = None  # where the misses were lost; None: not looked for
    ann: tuple[AnnRecall, ...] = ()  # of the approximate indexes that were searched
    cut_replies: tuple[CutReplies, ...] = ()  # of the steps of which some were cut


FILES = {
    "report": "report.json", "predictions": "predictions.jsonl", "results": "results.parquet",
    "page": "report.html", "changes": "changes.json", "graphs": "graphs.txt", "manifest": "manifest.json",
}  # fmt: skip


EVAL_AGAIN = "The same `raypipe eval` again writes it, and computes nothing that is stored"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's folder, and the files in it."""

    path: Path
    report: Path = field(init=False)  # what `eval --json` prints
    predictions: Path = field(init=False)  # a line for each question
    results: Path = field(init=False)  # a row for each question: evaluation.result_table.SCHEMA
    page: Path = field(init=False)  # the report for people
    changes: Path = field(init=False)  # what a reprocess changed
    graphs: Path = field(init=False)  # operators of each graph of Ray Data, with their rows and seconds
    manifest: Path = field(init=False)  # what the run was made of; written last: with it a folder is whole

    def __post_init__(self) -> None:
        for name, file in FILES.items():
            object.__setattr__(self, name, self.path / file)


def to_json(report: EvalReport) -> dict[str, Any]:
    """The report as one JSON object: what `eval --json` prints and report.json holds."""

    def part(*names: str) -> dict[str, Any]:
        return {name: json_of(getattr(report, name)) for name in names}

    marks, scores, injection = report.marks, report.scores, report.prompt_injection
    return {
        "format": JSON_FORMAT,
        **part(
            "run", "recipe", "digest", "questions", "citations", "distinct_pages", "empty_pages", "chunks"
        ),
        **part("pages_compared", "parser_fallbacks", "normalized"),
        **part("replaced", "without_truth"),
        "faults": sum(f.rows for f in report.faults if not f.recovered),
        "faults_by_reason": json_of(report.faults),
        **part("answered_by", "cut_replies"),
        "rule": marks.rule,
        **asdict(marks.score),
        "unscored": marks.score.n_unscored,
        **intervals_to_json(marks),
        **part("judge", "labels"),
        **parts_to_json(marks),
        "kind": scores.kind,
        "lead": scores.lead,
        "measures": json_of(scores.measures),
        "measure_slices": json_of(scores.slices),
        "blocks": list(scores.blocks),
        **part("answer_cut"),
        "prompt_injection": injection and {**asdict(injection), "rate": injection.rate},
        **part("seconds", "clock", "resumed", "memo_damaged", "cost", "fits", "unseen"),
        "oracle": report.oracle or None,
        "oracle_golds": report.oracle_golds if report.oracle else None,
        **part("routing", "calibration", "losses", "ann", "steps"),
    }


def ranking(question: Question) -> list[Hit]:
    """The hits of a question: its ranking, best first, then the candidates that did not make it."""
    by_chunk = {h.chunk: h for h in question.hits}
    chosen = dict.fromkeys(question.order)
    return [by_chunk[c] for c in chosen] + [h for h in question.hits if h.chunk not in chosen]


def urls(question: Question) -> dict[str, str]:
    """Source id -> url of the question's best-ranked citation with this source."""
    found: dict[str, str] = {}
    for citation in sorted(question.citations or (), key=lambda c: c.rank):
        for source in citation.sources():
            found.setdefault(source, citation.url)
    return found


def answer_of(question: Question) -> str | None:
    """Returns what was answered; None: the question failed, was never answered, or was only ranked."""
    return None if question.outcome in ("", FAULT, RANKED) else question.answer


def write_report(folder: RunFolder, report: EvalReport) -> None:
    write_json(folder.report, to_json(report))
