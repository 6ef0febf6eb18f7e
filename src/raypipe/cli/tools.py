"""Commands about this machine, files and steps of one's own: doctor, init, check-step, validate, schema,
completion, usage, bench."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import raypipe
from raypipe.cli.command import Args, called, command, console, on_console, printed, say, table
from raypipe.core.errors import ConfError, DataError

if TYPE_CHECKING:
    from raypipe.api.bench import BenchReport
    from raypipe.api.machine import EnvironmentResult
    from raypipe.api.schemas import Name
    from raypipe.api.starting_points import ProjectResult
    from raypipe.api.usage import UsageResult
    from raypipe.api.validate import ValidateResult

SCHEMAS: tuple[Name, ...] = ("cluster", "finetune", "graphs", "models", "recipe")
UNEQUAL = 7  # exit code: a gate failed, some output of a bench is not its peer's


@command("doctor", "raypipe doctor --json", "store json")
def _doctor(args: Args) -> int:
    found = called(raypipe.check_environment, args)
    printed(args, found, _print_findings)
    return 0 if found.fine else ConfError.exit_code


def _print_findings(found: EnvironmentResult) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("", "what", "found"):
        table.add_column(name, overflow="fold")
    marks = {"fine": "[green]ok[/]", "missing": "[red]missing[/]", "note": "[yellow]note[/]"}
    for f in found.findings:
        table.add_row(marks[f.state], f.what, f.found)
    console().print(table)
    for mend in dict.fromkeys(f.mend for f in found.findings if f.mend):
        print(f"\n{mend}")  # whole lines, to copy


@command(
    "init",
    "raypipe init myproject",
    """
    folder DIR: made where it is not there; no file in it is replaced
    json
    """,
)
def _init(args: Args) -> int:
    from raypipe.api.starting_points import RECIPE

    def show(made: ProjectResult) -> None:
        print("\n  ".join([f"{made.folder}:", *made.files]))
        does = f"cd {args.folder}; raypipe models {RECIPE}; python -m unittest"
        print(f"There, README.md has the commands: {does}")

    return printed(args, called(raypipe.start_project, args), show)


@command(
    "check-step",
    "raypipe check-step mypkg.steps:Shout --fields '{into: shout}'",
    """
    step MODULE:CLASS: the step, as a recipe names it
    --fields YAML {= {}}: its fields, as in a recipe
    models
    --lock: write its line in steps.lock, next to its module
    json
    """,
)
def _check_step(args: Args) -> int:
    from raypipe.report.console import print_step_check

    checked = called(raypipe.check_step, args, fields=_fields(args.fields))
    printed(args, checked, on_console(print_step_check))
    return 0 if checked.found.holds else DataError.exit_code


def _fields(text: str) -> Mapping[str, Any]:
    from raypipe.core.config import read_value

    fields = read_value(text, "--fields")
    if not isinstance(fields, Mapping):
        raise ConfError(f"--fields: expected a mapping of fields to values, found {text!r}")
    return fields


@command(
    "validate",
    "raypipe validate local mine.yaml conf/clusters/laptop.yaml",
    """
    files RECIPE|FILE+: a name under conf/recipes, or a path: a recipe, a models, cluster or graphs file, a
      prompt
    models graph json
    """,
)
def _validate(args: Args) -> int:
    found = called(raypipe.validate, args, *args.files)
    printed(args, found, _print_problems)
    return ConfError.exit_code if found.problems else 0


def _print_problems(found: ValidateResult) -> None:
    for problem in found.problems:
        print(problem)
    for file in found.files:
        if not file.problems:
            print(f"{file.file}: no problem ({file.kind})")


@command(
    "schema",
    "raypipe schema --out schemas",
    """
    name NAME? {cluster|finetune|graphs|models|recipe}: cluster, finetune, graphs, models, recipe (all)
    --out DIR {path}: folder for NAME.json (default: print)
    """,
)
def _schema(args: Args) -> int:
    from raypipe.metrics.textfile import require_writable

    found = {name: raypipe.schema(name) for name in SCHEMAS if args.name in (None, name)}
    if args.out is None:
        print(json.dumps(found[args.name] if args.name else found, indent=1))
        return 0
    require_writable(args.out, "--out")
    args.out.mkdir(parents=True, exist_ok=True)
    for name, tree in found.items():
        file = args.out / f"{name}.json"
        file.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
        print(file)
    return 0


@command("completion", "raypipe completion bash", "shell {bash|zsh}: whose script")
def _completion(args: Args) -> int:
    import shtab

    from raypipe.cli.main import parser

    print(shtab.complete(parser(), args.shell))
    return 0


@command(
    "usage",
    "raypipe usage /data/logs/serve.jsonl",
    """
    logs LOG+: logs that `raypipe serve` wrote
    json
    """,
)
def _usage(args: Args) -> int:
    return printed(args, raypipe.usage(args.logs), _print_usage)


def _print_usage(found: UsageResult) -> None:
    counts = ("requests", "refused", "failed", "questions", "tokens")
    rows = []
    for t in found.tenants:
        p99 = "" if t.p99_ms is None else f"{t.p99_ms:.0f} ms"
        rows.append((t.tenant, *(f"{getattr(t, name):,}" for name in counts), p99))
    table(("tenant", *counts, "p99"), rows)


@command(
    "bench",
    "raypipe bench split bm25",
    """
    names NAME*: rows, by their files in bench/rows (all)
    --quick: one turn of a small size: does each row work?
    --record: add to bench/history.jsonl, and write docs/performance.md
    json
    """,
)
def _bench(args: Args) -> int:
    found = called(raypipe.bench, args, say=lambda r: say(f"{r.name}: {r.not_measured or 'measured'}"))
    printed(args, found, _print_bench)
    return 0 if found.equal else UNEQUAL


def _print_bench(report: BenchReport) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=", ".join(f"{k} {v}" for k, v in report.machine.items()))
    for name in ("row", "ours", "peer", "ratio", "CPU s", "wall s", "of limit", "equal"):
        table.add_column(name, overflow="fold")
    for r in report.results:
        if r.not_measured:
            table.add_row(r.name, r.not_measured)
            continue
        ratio = f"{r.ratio.median:.2f} ({r.ratio.low:.2f}-{r.ratio.high:.2f})" if r.ratio else ""
        if r.falls_short:
            ratio += f" of {r.least:.2g}" if r.least is not None else f"more than {r.most_s:g} s"
        peer = f"{r.peer_rate:.4g}" if r.peer_rate else ""
        share = f"{r.share:.0%} of {r.limit}" if r.share is not None else ""
        equal = r.unequal or ("yes" if r.peer else "")
        table.add_row(
            r.name, f"{r.rate:.4g} {r.unit}/s", peer, ratio, f"{r.cpu_s:.3f}", f"{r.wall_s:.3f}", share, equal
        )  # fmt: skip
    console().print(table)
