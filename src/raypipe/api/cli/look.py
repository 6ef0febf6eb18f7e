"""Commands that look at a finished run: inspect, export, view, reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, console, on_console, say, table
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.evaluation.report.wording import cut

if TYPE_CHECKING:
    from raypipe.api.look import ExportResult, FieldsResult, LossesResult
    from raypipe.api.reproduce import ReproduceResult, Reproductions


@command("inspect", "/data/runs/local 2f5d8a")
def inspect(
    session: Session,
    run: str | None = arg("the --out folder of a finished eval; --faults and --fields can do without", "DIR"),
    row: str | None = arg("a question's id, or how it begins: why its answer is as it is", "ROW"),
    *,
    faults: bool = arg("list the rows that failed; without DIR, what could not be read into the store"),
    fields: bool = arg("list the fields of the store's documents, which conditions test"),
    losses: bool = arg("say for each wrong answer where its gold was lost"),
    at: str | None = arg("with --losses: list the questions that were lost there (default: none)", "PLACE"),
    place: shared.StoreFlags,
) -> Shown[Any]:
    if at is not None and not losses:
        raise ConfError("--at: expected with --losses")
    if faults + losses + fields + (row is not None) > 1:
        raise ConfError("expected one of ROW, --faults, --fields and --losses")
    if fields:
        return Shown(raypipe.fields(place.uri(session), session), _print_fields)
    if faults:
        found = raypipe.faults(run, place.uri(session), session)
        return Shown(found, lambda found: on_console("console.print_row_faults", found.found))
    if run is None:
        raise ConfError("expected the folder of a finished eval; --faults and --fields can do without")
    if row is not None:
        return Shown(
            raypipe.why(run, row), lambda found: on_console("plans.print_explanation", found.explanation)
        )
    if losses:
        return _losses(run, at)
    return Shown(
        raypipe.finished_run(run),
        lambda found: on_console("console.print_run_tables", found.run, found.folder),
    )


def _print_fields(found: FieldsResult) -> None:
    rows = [(f.name, f.type, f.rows, cut(f.example, 60)) for f in found.fields]
    table(("field", "type", "rows", "example"), rows)


def _losses(run: str, at: str | None) -> Shown[LossesResult]:
    def show(found: LossesResult) -> None:
        on_console("console.print_losses", found.losses)
        on_console("console.print_lost", () if at is None else found.questions)
        if not (found.losses.misses if at is None else found.questions):
            print(f"no question was lost{'' if at is None else f' at {at}'}")

    return Shown(raypipe.losses(run, at), show)


@command("export", "/data/runs/local --as trec --out local.trec")
def export(
    shell: Shell,
    run: str = shared.RUN,
    *,
    shape: Literal["predictions", "crag", "qasper", "trec", "oag", "mlflow"] = arg(
        "predictions.jsonl; lines of CRAG's or QASPER's evaluator; the ranking; OAG-QA's submission; a run "
        "of an MLflow server",
        flag="--as",
        needed=True,
    ),
    out: str = arg("the file to write; of mlflow the server's address", "FILE", needed=True),
    experiment: str | None = arg("of mlflow: the experiment that gets the run (default: raypipe)", "NAME"),
) -> Shown[Any]:
    return Shown(raypipe.export_run(run, shape, out, experiment), _print_export)


def _print_export(made: ExportResult) -> None:
    if made.shape == "mlflow":
        what = ", ".join(f"{n} {name}" for name, n in made.counts.items()).replace("artifacts", "files")
        print(f"run {made.run} of {made.file}: {'was there already' if made.there else what}")
        return
    print(f"{made.counts['lines']} lines: {made.file}")
    if failed := made.counts.get("failed"):
        said = {"oag": "their lines are empty", "qasper": "the file has no line of them, which counts 0"}
        print(f"{failed} questions failed;", said.get(made.shape, 'the file says "i don\'t know" of them'))


@command("view", "/data/runs/local /data/runs/tuned")
def view(
    shell: Shell,
    runs: Sequence[str] = arg("finished evals, or folders of them ($RAYPIPE_HOME, the store)", "DIR"),
    *,
    labels: str | None = arg("where people's marks are written (labels.jsonl in the run's folder)", "FILE"),
    port: int = arg("0: a free one (default: 8001)", "N", shared.whole(0, 65535), default=8001),
    place: shared.StoreFlags,
) -> int | Shown[Any]:
    from raypipe.api.view import left_out, serve_view

    session = shell.session()
    store = place.uri(session)
    if not shell.json:
        serve_view(runs, store, labels, port, say, session)
        return 0
    found = raypipe.list_runs(runs, store, session)
    if found.unread:
        say(f"{len(found.runs)} runs{left_out(found.unread)}")
    return Shown(found, say)


MOST = 6  # expected numbers that are listed


@command("reproduce", "scifact --check --data /data/scifact")
def reproduce(
    shell: Shell,
    name: str | None = arg("a run of conf/reproduce.yaml (list them, and what papers state)", "NAME"),
    *,
    check: bool = arg("run it and compare its numbers (default: say what they are)"),
    data: str | None = arg("the folder or file that the run reads", "PATH"),
    place: shared.StoreFlags,
    cluster: str = shared.CLUSTER,
) -> Shown[Any]:
    from raypipe.api.reproduce import reproductions

    session = shell.session(cluster=cluster)
    if name is None or not check:
        return Shown(reproductions(session, name), _list)
    if data is None:
        run = reproductions(session, name).runs[name]
        raise ConfError(f"--check: expected --data, {run.data}")
    found = raypipe.reproduce(name, data, place.uri(session), False, session)
    return Shown(found, _show, after=found.check)


def _show(found: ReproduceResult) -> None:
    print(found.about)
    rows = []
    for n in found.numbers:
        apart = "" if n.difference is None else f"{n.difference:+.4f}"
        said = "none" if n.found is None else f"{n.found:.4f}"
        rows.append((n.measure, n.by, f"{n.expected:.4f}", said, apart, n.verdict))
    table(("measure", "by", "expected", "found", "difference", ""), rows)
    print(f"{found.name}: {found.verdict}")


def _list(known: Reproductions) -> None:
    from raypipe.evaluation.report.console import say

    out = console()
    for name, run in known.runs.items():
        say(out, f"{name}: {run.about}; {run.minutes:g} min", style="bold")
        first = [f"{e.measure}{f' by {e.by}' if e.by else ''} {e.value:g}" for e in run.expected[:MOST]]
        more = f" and {len(run.expected) - MOST} more" if len(run.expected) > MOST else ""
        say(out, f"  --data: {run.data}", f"  expected: {', '.join(first)}{more}")
        say(out, f"  raypipe reproduce {name} --check --data PATH")
    if known.published:
        say(out, "What papers state; their runs need models and data of their own:", style="bold", fold=True)
    for p in known.published:
        say(out, f"{p.recipe}: {p.states}", f"  their model: {p.theirs}; data: {p.data}", f"  {p.command}")
