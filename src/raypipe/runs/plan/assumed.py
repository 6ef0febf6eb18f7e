"""Estimated cost of a corpus that does not exist yet.

Tasks, bytes, requests, hours and money are computed from the cluster file, sizes of a real page, the chunks
that the recipe's own split makes of such a page, and rates of finished runs of the same steps on the same
kind of machine. Hours are None without a rate, else a lower bound: all workers are assumed to get equal work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from raypipe.core.config import Where, build
from raypipe.core.errors import ConfError
from raypipe.core.llm import HOUR_S, Prices
from raypipe.core.protocols import Kit
from raypipe.core.records import Source, SourceKind, source_id
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models, embedder_of, table_of
from raypipe.runs.pipeline.ingest_tasks import SHARD_BYTES
from raypipe.runs.pipeline.tasks import Verb, Workers
from raypipe.runs.plan.costs import rate, scaled, summed
from raypipe.runs.plan.records import KEY_BYTES, Range, embedded_bytes
from raypipe.runs.plan.sample import look
from raypipe.runs.record import Run
from raypipe.runs.stage_records import describe

ZSTD = 0.163  # bytes in the table of sources per byte of HTML: 11.5 MB of real pages take 1.87 MB
READ_BYTES_S = 30e6  # JSON to rows of tables, by one core (bench: `ingest_bz2` without its unpacking)
# Writes to an object store per part: the rows, the completion record, the record of faults.
PUTS = 3
# Reads per part: the driver reads both records, requests the size of the rows' file, and reads their units.
GETS = 5
SENTENCE = "Most of what stands on a page is said in words of some letters each, as here. "
# Characters of a page's lines: many short ones as in a menu, some paragraphs.
LINES = (12, 20, 50, 370, 26, 150, 8, 540)


@dataclass(frozen=True, slots=True)
class Assumed:
    """Size of a corpus that does not exist yet. The defaults are averages of 36 real pages of CRAG."""

    pages: float
    html_bytes: float = 319_000
    text_chars: float = 22_000
    chunks: float | None = None  # chunks per page; None: as many as the recipe's split makes of one

    def __post_init__(self) -> None:
        for field, number in asdict(self).items():
            if number is not None and not 1 <= number < math.inf:
                raise ValueError(f"{field}: expected a number of at least 1, found {number:g}")

    @classmethod
    def parse(cls, text: str, name: str) -> Assumed:
        """Parses `pages=1e8,html_bytes=20000`. Raises ConfError. `name`: the argument's name in messages."""
        given: dict[str, float] = {}
        for part in text.split(","):
            field, _, value = part.partition("=")
            try:
                given[field.strip()] = float(value)
            except ValueError as e:
                raise ConfError(f"{name}: expected FIELD=NUMBER as in pages=1e8, found {part!r}") from e
        return build(cls, given, Where(name))


@dataclass(frozen=True, slots=True)
class AssumedStep:
    """Estimated cost of one kind of work."""

    step: str  # ingest, or a step of the corpus half
    rows: float  # pages, or chunks
    tasks: int  # 0: tasks of an earlier step do this work
    bytes: float  # growth of the store
    requests: float  # least requests to an object store
    hours: Range | None  # hours on the clock; None: no run measured the step on such machines


@dataclass(frozen=True, slots=True)
class AssumedPlan:
    """Estimated cost of the whole corpus."""

    assumed: Assumed
    cluster: str  # name or path of the cluster file
    steps: tuple[AssumedStep, ...]
    hours: Range | None  # on the clock, for one step after the other; None: a step is not measured
    usd: Range | None  # price of the machines; None: not known


def assumed_plan(
    recipe: Recipe,
    assumed: Assumed,
    cluster: str,
    per_task: int,
    workers: Callable[[Verb], Workers],
    place: tuple[str, str],
    runs: Sequence[Run],
    prices: Prices,
    kit: Kit,
) -> AssumedPlan:
    """Estimates the cost of a corpus. `per_task`: most sources of a task; `workers` returns a verb's workers;
    `place`: backend and device; `runs`: finished runs, newest first; `kit` opens the split's tokenizers."""
    if assumed.chunks is None and recipe.corpus:
        assumed = replace(assumed, chunks=chunks_of_page(recipe, assumed.text_chars, kit))
    whole = assumed.pages * assumed.html_bytes
    hours, tasks = whole / READ_BYTES_S / workers("parse").count / HOUR_S, math.ceil(whole / SHARD_BYTES)
    requests = tasks * 3 * (PUTS + GETS)  # sources, documents and layouts
    steps = [AssumedStep("ingest", assumed.pages, tasks, whole * ZSTD, requests, (hours, hours))]
    chunks = assumed.pages * (assumed.chunks or 0)
    stages, filled = {s.name: s for s in describe(recipe)}, set[str]()
    for stage in recipe.corpus:
        table = table_of(stage.step)
        verb: Verb = "embed" if table == "vectors" else "parse"
        pool = workers(verb)
        tasks = math.ceil(assumed.pages / pool.per_task(math.ceil(assumed.pages), per_task))
        rows = chunks if table == "vectors" else assumed.pages
        grows = assumed.pages * assumed.text_chars if table == "texts" else chunks * KEY_BYTES
        if table == "vectors":
            grows = embedded_bytes(embedder_of(stage.step).dim, chunks)
        if table in filled and table != "vectors":  # a table is filled by the tasks of its first step
            tasks, grows = 0, 0.0
        filled.add(table)
        asked = len(asked_models(stage.step))  # each is called once per row
        calls = (rows * asked,) * 2 if asked else None
        took = scaled(rate(stages[stage.name], runs, *place).seconds(rows, calls), 1 / pool.count / HOUR_S)
        steps.append(AssumedStep(stage.name, rows, tasks, grows, tasks * (PUTS + GETS), took))
    clock = summed([s.hours for s in steps])
    return AssumedPlan(assumed, cluster, tuple(steps), clock, scaled(clock, prices.machines))


def chunks_of_page(recipe: Recipe, chars: float, kit: Kit) -> float:
    """Returns the chunks that the recipe makes of a made-up page of `chars` characters. Raises ConfError if
    it makes none: the split calls a model, a step raises, or the page is too short."""
    lines = list[str]()
    while (left := int(chars) - sum(map(len, lines)) - len(lines)) > 0:
        lines.append((SENTENCE * 8)[: min(left, LINES[len(lines) % len(LINES)])])
    kind: SourceKind = "page" if "page" in recipe.source_kinds() else recipe.source_kinds()[0]
    text = "\n".join(f"<p>{line}</p>" if kind == "page" else line for line in lines)
    chunks = look(recipe, kit, [Source(source_id(kind, text), kind, text)]).chunks.num_rows
    if not chunks:
        raise ConfError(
            "--assume: the split made no chunks (it may call a model): state them, such as chunks=31"
        )
    return float(chunks)
