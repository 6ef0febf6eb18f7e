"""Functions about finished runs: they explain answers, list faults and lost questions, write results for
other programs, and show runs in a browser."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from raypipe.api.paths import Data, several
from raypipe.api.results import Result, outside_loop
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError, DataError, RaypipeError, Unavailable
from raypipe.core.progress import Progress
from raypipe.core.textfile import require_file
from raypipe.evaluation.export import FileShape, log_run
from raypipe.evaluation.export import export as write
from raypipe.evaluation.fault_budget import RowFaults, row_faults, unread_rows
from raypipe.evaluation.golds import documents_of, questions_of
from raypipe.evaluation.result_table import flat_rows, read_table
from raypipe.evaluation.view.run_list import RemoteRuns, RunHeader, RunList
from raypipe.evaluation.view.viewer import Viewer, ViewServer
from raypipe.metrics.losses import Losses, place
from raypipe.readers.object_store import is_remote
from raypipe.recipes.serialize import description
from raypipe.runs import explain
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.runs.record import Run, answer_keys, read
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store
from raypipe.store.fields import Field, fields_now


@dataclass(frozen=True, slots=True, repr=False)
class WhyResult(Result, rows="explanation.steps", record="explanation"):
    """Explanation of one question of a run. Each step is a row, with its requests, results and reasons."""

    explanation: explain.Explanation


@dataclass(frozen=True, slots=True, repr=False)
class FaultsResult(Result, rows="found.rows"):
    """Rows with faults: dead letters (rows that failed for good), pending rows (rows that the next run tries
    again), rows answered by another step, unread lines and files."""

    run: str  # "": no run; the rows are lines and files that the store could not read
    found: RowFaults

    def record(self) -> Mapping[str, Any]:
        return {"run": self.run, "rows": self.found.counts, "faults": self.found.rows}


@dataclass(frozen=True, slots=True, repr=False)
class FieldsResult(Result, rows="fields"):
    """Fields of a store's documents that conditions can test. Each field is a row."""

    store: str  # URI
    fields: tuple[Field, ...]  # by name


@dataclass(frozen=True, slots=True)
class LostQuestion:
    """A question whose answer is not right."""

    id: str
    query: str
    lost: str  # the place of the loss, such as parsing, recall or answer (metrics.losses.places)
    step: str | None  # name of the stage that lost it; None: it was lost before any stage
    golds: tuple[str, ...]
    answer: str
    verdict: str | None  # None: no rule scores the data


@dataclass(frozen=True, slots=True, repr=False)
class LossesResult(Result, rows="questions"):
    """Losses of a run, counted by their place. Each lost question is a row."""

    run: str
    recipe: str  # name of the recipe
    losses: Losses
    questions: tuple[LostQuestion, ...]  # the lost questions, in the order of the run


@dataclass(frozen=True, slots=True, repr=False)
class FinishedRun(Result, record="run"):
    """Record of a finished run. Each question is a row, as `evaluate` returns it."""

    run: Run
    folder: RunFolder

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return flat_rows(self.folder.results, self.run.kind)


def finished_run(run: str | Path) -> FinishedRun:
    """Reads the record of a finished run from the folder of an eval. Raises DataError if there is none."""
    folder = RunFolder(Session().local_run(run))
    return FinishedRun(read(folder.path), folder)


@outside_loop
def why(run: str | Path, row: str) -> WhyResult:
    """Explains how a finished run answered one question, step by step.

    The result has the question's sources, prompts, replies and key, and the requests of each step with their
    reasons. `run` is the folder of an eval. `row` is the question's id, or a prefix that no other id has.
    Raises DataError if the run or the question does not exist, or if the answer was kept from a run without a
    record. Raises ConfError if this version of raypipe computes the recipe differently.
    """
    folder = RunFolder(Session().local_run(run))
    record = read(folder.path)
    found = explain.why(Store.open(record.store), record, row)
    [line] = [r for r in flat_rows(folder.results, record.kind) if r["id"] == found.question]
    return WhyResult(replace(found, expected=line["golds"], verdict=line["verdict"]))


def fields(store: Place = None, session: Session | None = None) -> FieldsResult:
    """Lists the fields of a store's documents that a condition (`where`) can test, with their types."""
    opened = (session or Session()).store(store)
    return FieldsResult(opened.uri, tuple(fields_now(opened).fields()))


@outside_loop
def faults(
    run: str | Path | None = None, store: Place = None, session: Session | None = None
) -> FaultsResult:
    """Lists the rows of a finished run that failed, with the reason, the number of tries and the outcome.

    A row that a later run has repaired is left out. If `run` is None, lists the lines and files that could
    not be read into `store`. Raises DataError for an unfinished `run`, or for an empty store without a `run`.
    """
    if run is None:
        opened = (session or Session()).store(store)
        unread = unread_rows(opened)
        if not (unread or opened.count("sources") or opened.count("questions")):
            raise DataError(f"{opened.uri}: the store is empty. `raypipe ingest PATH` reads files into it")
        return FaultsResult("", RowFaults(unread, ()))
    record = read((session or Session()).local_run(run))
    opened = Store.open(record.store)
    # No task runs, so the settings of the worker have no effect.
    worker = WorkerConfig(opened.uri, "transformers", record.device, 1)
    silent = Progress(sys.stderr, silent=True)
    pipeline = Pipeline(opened, description(record.recipe), worker, TaskSizes(1, 1), inline, silent)
    answered = sorted(id for id, key in answer_keys(opened, record.run).items() if not key.kept)
    questions = questions_of(pipeline, answered, None)
    return FaultsResult(record.run, row_faults(pipeline, questions, {}))


@outside_loop
def losses(run: str | Path, at: str | None = None) -> LossesResult:
    """Lists the questions of a finished run without a right answer, each with the place where it was lost.

    The place is the first one without the right answer, such as recall. `at` is a place, and only questions
    lost there are listed; None lists all. Raises ConfError for an unknown place. Raises DataError if the run
    is not finished, and for data whose right answers are documents.
    """
    folder, here = RunFolder(Session().local_run(run)), None if at is None else place(at)
    record = read(folder.path)
    if record.losses is None:
        raise DataError(f"{run}: kind {record.kind} asks for documents, and no answer can be lost")
    columns = ["id", "query", "lost", "lost_step", "golds", "answer", "verdict"]
    rows = read_table(folder.results, columns).to_pylist()
    found = [r for r in rows if r["lost"] is not None and here in (None, r["lost"])]
    questions = tuple(LostQuestion(*(r[n] for n in columns)) for r in found)
    return LossesResult(record.run, record.title, record.losses, questions)


Shape: TypeAlias = Literal[FileShape, "mlflow"]
ANSWERS_S = 10  # seconds to wait for a server's health page; our choice


@dataclass(frozen=True, slots=True, repr=False)
class ExportResult(Result):
    """An export that was written."""

    file: str  # path of the file; `mlflow`: the address of the tracking server
    shape: Shape
    counts: Mapping[str, int]  # lines and failed questions; `mlflow`: params, metrics, artifacts
    run: str = ""  # `mlflow`: id of the run on the server
    there: bool = False  # `mlflow`: the server had the run already, and nothing was written


def export_run(run: str | Path, shape: Shape, out: str | Path, experiment: str | None = None) -> ExportResult:
    """Writes the results of a finished eval in the format of another program.

    `shape` names the format. `predictions` is a file of predictions, `crag` and `qasper` are the inputs of
    these evaluators, `trec` is a ranking, and `oag` is a submission to OAG-QA (the best 20 papers). `mlflow`
    sends the run to the MLflow server at the address `out`, into `experiment` (None: raypipe). A ranking
    names documents by their ids in the store, and pages by their addresses. Raises DataError for an
    unfinished run, for an `out` that would replace the run's results or record, and for a run that lacks
    these results. Raises ConfError if MLflow is not installed, and for an `experiment` with another format.
    Raises Unavailable if the MLflow server refuses the run.
    """
    folder = RunFolder(Session().local_run(run))
    if shape == "mlflow":
        return _to_mlflow(folder, str(out), experiment or "raypipe")
    if experiment is not None:
        raise ConfError(f"--experiment: expected with --as mlflow, found --as {shape}")
    if Path(out).resolve() in (folder.results.resolve(), folder.record.resolve()):
        raise DataError(f"{out}: expected another file: this one belongs to the run")
    require_file(out, "--out")
    listed = documents_of(Store.open(read(folder.path).store)) if shape in ("trec", "oag") else {}
    return ExportResult(str(out), shape, write(folder, shape, Path(out), listed))


def _to_mlflow(folder: RunFolder, address: str, experiment: str) -> ExportResult:
    if importlib.util.find_spec("mlflow") is None:
        raise ConfError("--as mlflow: MLflow is not installed: pip install 'raypipe[mlflow]'")
    import httpx  # its import takes .1 s, and only a server needs it

    from raypipe.core.connections import open_client

    # Without a server MLflow's client retries for minutes in silence. Any reply proves a server.
    if address.startswith(("http://", "https://")):
        try:
            with open_client(httpx.Client, timeout=ANSWERS_S) as client:
                client.get(f"{address.rstrip('/')}/health")
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            found = f"--out {address}: expected an MLflow server, found none that answers ({e})"
            raise Unavailable(f"{found}. Nothing was sent: start it, and run the same command again") from e
    from mlflow import MlflowClient  # an optional dependency
    from mlflow.exceptions import MlflowException

    try:
        made = log_run(folder, MlflowClient(tracking_uri=address), experiment)
    except MlflowException as e:
        expected = "an MLflow server (`mlflow server`), or a folder, with MLFLOW_ALLOW_FILE_STORE=true"
        says = f"MLflow says: {str(e).strip(' .')}"
        do = "Correct that and run the same command again"
        raise Unavailable(f"--out {address}: expected {expected}; {says}. {do}") from e
    counts = {"params": made.params, "metrics": made.metrics, "artifacts": made.artifacts}
    return ExportResult(address, "mlflow", counts, made.id, made.there)


@dataclass(frozen=True, slots=True, repr=False)
class RunsResult(Result, rows="runs"):
    """Finished runs, the latest first. Each run is a row, without a `folder` if only the store records it."""

    runs: tuple[RunHeader, ...]
    unread: int = 0  # number of records that cannot be read, which are left out


def list_runs(dirs: Data = (), store: Place = None, session: Session | None = None) -> RunsResult:
    """Lists the finished runs in `dirs` (folders of runs, or folders that contain these) and in `store`.
    Without `dirs`, lists those under $RAYPIPE_HOME; `store` None then means the default store if it
    exists."""
    headers, unread = _runs(several(dirs), store, session or Session()).listed()
    return RunsResult(tuple(headers), unread)


def _runs(dirs: Sequence[str | Path], store: Place, session: Session) -> RunList:
    if dirs:
        places = list[Path | RemoteRuns]()
        for given in dirs:
            place = session.settings.place(str(given), "view")
            if is_remote(place):
                places.append(RemoteRuns(place, session.settings.home / "fetched"))
            elif Path(place).is_dir():
                places.append(Path(place))
            else:
                raise ConfError(f"{place} is no folder. Name the --out folder of a finished eval")
        return RunList(places, session.store(store) if store is not None else None)
    try:
        known = session.store(store)
    except RaypipeError:
        if store is not None:
            raise
        known = None  # no store exists here yet: the list is empty
    return RunList([session.settings.home / "runs"], known)


def left_out(unread: int) -> str:
    """Formats the number of runs whose record could not be read, to end a sentence. Returns "" for 0."""
    return f", {unread} of other formats left out" if unread else ""


def serve_view(
    dirs: Sequence[str | Path],
    store: Place,
    labels: str | Path | None,
    port: int,
    say: Callable[[str], None],
    session: Session,
) -> None:
    """Shows runs in a browser on this machine until the process is interrupted. `labels` is the file that
    receives people's marks; None means labels.jsonl in each run's folder. Raises ConfError if `dirs` contain
    no run, or if the port is taken."""
    if labels is not None:
        require_file(labels, "--labels")
    runs = _runs(dirs, store, session)
    headers, unread = runs.listed()
    if dirs and not headers:
        none = f"expected finished evals, found none{left_out(unread)}"
        raise ConfError(f"{', '.join(map(str, dirs))}: {none}. `raypipe view` shows those of $RAYPIPE_HOME")
    viewer = Viewer(runs, None if labels is None else Path(labels))
    try:
        server = ViewServer(viewer, port)
    except OSError as e:
        raise ConfError(f"--port {port}: cannot listen there: {e}. Choose another port") from e
    with server:
        say(f"{len(headers)} runs{left_out(unread)}; {server.address}/ shows them; Ctrl-C ends it")
        if dirs and len(ids := runs.given()) in (1, 2):
            say(f"{server.address}/{'run' if len(ids) == 1 else 'pair'}/{'/'.join(ids)}/")
        server.serve_forever()
