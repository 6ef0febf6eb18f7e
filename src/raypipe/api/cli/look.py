"""Commands about finished runs (inspect, export, view, reproduce), about releases (promote, rollback,
releases), and about deletion (prune, forget)."""

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
    from raypipe.api.look import ExportResult, LossesResult
    from raypipe.api.release import ForgetResult, PruneResult, ReleaseResult, ReleasesResult
    from raypipe.api.reproduce import ReproduceResult, Reproductions
    from raypipe.runs.release import ReleaseLine


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
        raise ConfError(
            "expected the folder of a finished eval; it is optional only with --faults and --fields"
        )
    if row is not None:
        return Shown(
            raypipe.why(run, row), lambda found: on_console("plans.print_explanation", found.explanation)
        )
    if losses:

        def show(found: LossesResult) -> None:
            on_console("console.print_losses", found.losses)
            on_console("console.print_lost", () if at is None else found.questions)
            if not (found.losses.misses if at is None else found.questions):
                print(f"no question was lost{'' if at is None else f' at {at}'}")

        return Shown(raypipe.losses(run, at), show)
    return Shown(
        raypipe.finished_run(run),
        lambda found: on_console("console.print_run_tables", found.run, found.folder),
    )


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
            print(
                f"{failed} questions failed;",
                said.get(made.shape, 'the file answers "i don\'t know" to them'),
            )

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
    from raypipe.api.look import left_out, serve_view

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
    shell: Shell,
    name: str | None = arg("a run of conf/reproduce.yaml (list them, and what papers state)", "NAME"),
    *,
    check: bool = arg("run it and compare its numbers (default: show them)"),
    data: str | None = arg("the folder or file that the run reads", "PATH"),
    place: shared.StoreFlags,
    cluster: str = shared.CLUSTER,
) -> Shown[Any]:
    from raypipe.api.reproduce import reproductions

    session = shell.session(cluster=cluster)
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


@command("promote", "/data/runs/local --gate 'score>=0.1' --gate 'hallucination<=0.3'")
def promote(
    session: Session,
    run: str = shared.RUN,
    *,
    gates: Sequence[str] = arg(
        "bound on a number of the run; or, against the live release, better, not-worse or not-worse:M",
        "BOUND",
        flag="--gate",
        each=True,
    ),
    against: str | None = arg("the run to compare with, instead of the live release's", "DIR"),
    min_scored: float | None = arg(
        "share of questions that must be scored (0.95)", "SHARE", shared.share_or_0
    ),
    store: str | None = arg("where the run's store is now (default: where it was)", "URI"),
) -> Shown[Any]:
    made = raypipe.promote(run, gates, store, min_scored, session, against)
    return Shown(made, _print_release)


@command("rollback", "--store /data/store")
def rollback(session: Session, *, place: shared.StoreFlags) -> Shown[Any]:
    return Shown(raypipe.rollback(place.uri(session), session), _print_release)


def _print_release(found: ReleaseResult) -> None:
    from raypipe.runs.gates import seen_by_a_fit

    made, score = found.release, _score(found.rows()[0])
    seen = seen_by_a_fit(made.seen)
    print(f"live in {found.store}: {made.id}, recipe {made.title}, run {made.run}, {score}{seen}")


def _score(row: ReleaseLine) -> str:
    """Formats the measures of a release, with the number of questions behind each."""
    said = []
    if row.score is not None:
        said.append(f"{row.score:+.3f} on {row.scored} of {row.questions}")
    lead = row.measure
    if lead is not None and lead.measure != "score" and lead.mean is not None:
        said.append(f"{lead.measure} {lead.mean:.3f} on {lead.scored} of {lead.of}")
    return ", ".join(said) or "not scored"


@command("releases", "--store /data/store")
def releases(session: Session, *, place: shared.StoreFlags) -> Shown[Any]:
    def show(found: ReleasesResult) -> None:
        rows = [(r.id, "live" * r.live, r.recipe, r.run, _score(r)) for r in found.releases]
        if rows:
            table(("release", "live", "recipe", "run", "score"), rows)
        else:
            print("no releases; `raypipe promote DIR` makes one of a finished eval")

    return Shown(raypipe.releases(place.uri(session), session), show)


@command("prune", "--store /data/store")
def prune(
    session: Session,
    *,
    place: shared.StoreFlags,
    dry_run: bool = arg("list what would be deleted"),
    abandon: Sequence[str] = arg(
        "give up this unfinished work, as named by a refused prune", "RUN", each=True
    ),
    replies: Sequence[str] = arg(
        "also delete replies of this model, which must be out of use", "MODEL", each=True
    ),
) -> Shown[Any]:
    def show(found: PruneResult) -> None:
        for r in found.removed:
            print(f"{r.kind} {r.name}: {r.rows} rows")
        things = "1 thing" if len(found.removed) == 1 else f"{len(found.removed)} things"
        print(f"{things} {'would be deleted' if found.dry_run else 'deleted'}")
        live, old = found.disk.live / 1e6, found.disk.old / 1e6
        print(f"tables: {live:,.1f} MB as they are now, {old:,.1f} MB of older versions")

    return Shown(raypipe.prune(place.uri(session), dry_run, abandon, replies, session), show)


@command("forget", "https://example.org/page --reason 'licence ended' --yes --store /data/store")
def forget(
    session: Session,
    names: Sequence[str] = arg(
        "urls, paths or ids of documents, ids of sources, questions", "ID", needed=True
    ),
    *,
    dry_run: bool = arg("list the places that hold it or rest on it; this or --yes is required"),
    yes: bool = arg("remove it permanently"),
    reason: str = arg("reason that its tombstone shows when it is ingested again", "TEXT", default=""),
    runs: Sequence[str] = arg("also this folder of runs or labels (under $RAYPIPE_HOME)", "DIR", each=True),
    place: shared.StoreFlags,
) -> Shown[Any]:
    if dry_run == yes:
        raise ConfError("expected one of --dry-run and --yes")

    def show(found: ForgetResult) -> None:
        for h in found.holdings:
            print(f"{h.place}: {h.rows} {h.does}" if h.rows else f"{h.place}: {h.does}")
        again = " by finishing what a killed command began" if found.finished else ""
        for t in found.targets if not dry_run else ():
            said = f"{t.kind} {t.name} is forgotten{again}; tombstone {t.tombstone[:8]}"
            print(f"{said} refuses it from now on")
        if dry_run:
            what = ", ".join(f"{t.kind} {t.name}" for t in found.targets)
            print(f"{what}: {len(found.holdings)} places hold it; nothing was removed (--yes removes it)")

    return Shown(raypipe.forget(names, place.uri(session), dry_run, reason, runs, session), show)
