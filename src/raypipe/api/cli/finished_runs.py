"""Commands about finished runs: inspect, export, view, reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, console, on_console, say, table
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.evaluation.report.formatting import cut

if TYPE_CHECKING:
    from raypipe.api.finished_runs import ExportResult, LossesResult
    from raypipe.api.reproduce import ReproduceResult, Reproductions


@command("inspect", "/data/runs/local 2f5d8a")
def inspect(
    session: Session,
    run: str | None = arg("the --out folder of a finished eval; optional with --faults and --fields", "DIR"),
    row: str | None = arg("explain the answer to this question: its id, or how the id begins", "ROW"),
    *,
    faults: bool = arg("list the rows that failed; without DIR, rows that could not be ingested"),
    fields: bool = arg("list the fields of the store's documents, which conditions can test"),
    losses: bool = arg("show for each wrong answer where its gold was lost"),
    at: str | None = arg("with --losses: list the questions that were lost there (default: none)", "PLACE"),
    place: shared.StoreFlags,
) -> Shown[Any]:
    if at is not None and not losses:
        raise ConfError("--at: expected with --losses")
    if faults + losses + fields + (row is not None) > 1:
        raise ConfError("expected one of ROW, --faults, --fields and --losses")
    if fields:
        heads = "field", "type", "rows", "example"
        store = place.uri(session) or (raypipe.finished_run(run).run.store if run else None)
        listed = raypipe.fields(store, session)
        rows = [(f.name, f.type, f.rows, cut(f.example, 60)) for f in listed.fields]
        return Shown(listed, lambda _: table(heads, rows))
    if faults:
        found = raypipe.faults(run, place.uri(session), session)
        return Shown(found, lambda found: on_console("console.print_row_faults", found.found))
    if run is None:
        raise ConfError("expected DIR, a finished eval's folder; only --faults and --fields need none")
    if row is not None:
        why = raypipe.why(run, row)
        return Shown(why, lambda why: on_console("plans.print_explanation", why.explanation))
    if losses:
        return Shown(raypipe.losses(run, at), lambda found: _print_losses(found, at))
    done = raypipe.finished_run(run)
    return Shown(done, lambda done: on_console("console.print_run_tables", done.run, done.folder))


def _print_losses(found: LossesResult, at: str | None) -> None:
    on_console("console.print_losses", found.losses)
    on_console("console.print_lost", () if at is None else found.questions)
    if not (found.losses.misses if at is None else found.questions):
        print(f"no question was lost{'' if at is None else f' at {at}'}")


@command("export", "/data/runs/local --as trec --out local.trec")
def export(
    run: str = shared.RUN,
    *,
    shape: Literal["predictions", "crag", "qasper", "trec", "oag", "mlflow"] = arg(
        "predictions.jsonl; lines of CRAG's or QASPER's evaluator; the ranking; OAG-QA's submission; a run "
        "of an MLflow server",
        flag="--as",
        needed=True,
    ),
    out: str = arg("file to write; for mlflow, the server's address", "FILE", needed=True),
    experiment: str | None = arg("for mlflow: experiment that gets the run (default: raypipe)", "NAME"),
) -> Shown[Any]:

    def show(made: ExportResult) -> None:
        if made.shape == "mlflow":
            what = ", ".join(f"{n} {name}" for name, n in made.counts.items()).replace("artifacts", "files")
            print(f"run {made.run} of {made.file}: {'was there already' if made.there else what}")
            return
        print(f"{made.counts['lines']} lines: {made.file}")
        if failed := made.counts.get("failed"):
            said = {"oag": "their lines are empty", "qasper": "the file has no line for them, which counts 0"}
            rest = 'the file answers "i don\'t know" to them'
            print(f"{failed} questions failed; {said.get(made.shape, rest)}")

    return Shown(raypipe.export_run(run, shape, out, experiment), show)


@command("view", "/data/runs/local /data/runs/tuned")
def view(
    shell: Shell,
    runs: Sequence[str] = arg("finished evals, or folders of them ($RAYPIPE_HOME, the store)", "DIR"),
    *,
    labels: str | None = arg("file for people's marks (labels.jsonl in the run's folder)", "FILE"),
    port: int = arg("0: a free one (default: 8001)", "N", shared.whole(0, 65535), default=8001),
    place: shared.StoreFlags,
) -> int | Shown[Any]:
    from raypipe.api.finished_runs import left_out, serve_view

    session = shell.session()
    store = place.uri(session)
    if not runs:
        where = f"{shell.settings.home / 'runs'} and {shell.settings.store_to_use(store)}"
        say(f"runs in {where}; for others name the folder that --out gave: raypipe view DIR")
    if not shell.json:
        serve_view(runs, store, labels, port, say, session)
        return 0
    found = raypipe.list_runs(runs, store, session)
    if found.unread:
        say(f"{len(found.runs)} runs{left_out(found.unread)}")
    return Shown(found, say)


MOST = 6  # expected numbers listed per run


@command("reproduce", "scifact --check --data /data/scifact")
def reproduce(
    name: str | None = arg("a run of conf/reproduce.yaml (list them, and what papers state)", "NAME"),
    *,
    check: bool = arg("run it and compare its numbers (default: show them)"),
    data: str | None = arg("the folder or file that the run reads", "PATH"),
    place: shared.StoreFlags,
    session: Session = shared.session("cluster"),
) -> Shown[Any]:
    from raypipe.api.reproduce import reproductions

    if name is None or not check:
        return Shown(reproductions(session, name), _list_known)
    if data is None:
        run = reproductions(session, name).runs[name]
        raise ConfError(f"--check: expected --data, {run.data}")
    found = raypipe.reproduce(name, data, place.uri(session), False, session)

    def show(found: ReproduceResult) -> None:
        print(found.about)
        rows = []
        for n in found.numbers:
            apart = "" if n.difference is None else f"{n.difference:+.4f}"
            said = "none" if n.found is None else f"{n.found:.4f}"
            rows.append((n.measure, n.by, f"{n.expected:.4f}", said, apart, n.verdict))
        table(("measure", "by", "expected", "found", "difference", ""), rows)
        print(f"{found.name}: {found.verdict}")

    return Shown(found, show, after=found.check)


def _list_known(known: Reproductions) -> None:
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
