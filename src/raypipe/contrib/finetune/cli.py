"""Commands that train a step of a recipe: labels, finetune.

Modules that call the API are imported only when a command runs, so help is quick.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import yaml

from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, console
from raypipe.api.cli.runs import shown_plan, tell
from raypipe.api.session import Session
from raypipe.core.terminal import open_console

if TYPE_CHECKING:
    from raypipe.contrib.finetune.finetune import FinetuneResult
    from raypipe.contrib.finetune.labels import LabelsResult


@dataclass(frozen=True)
class LabelFlags(shared.WorkFlags):
    """Options that choose the questions, the step and the rules of labels."""

    step: str | None = arg("the step, by the name of its reply (default: the last that answers)", "INTO")
    where: Sequence[str] = arg(
        "take only questions with this label, such as domain=movie,music", "LABEL=V1,V2", each=True
    )
    against: Sequence[str] = arg(
        "files or LABEL=V1,V2 that must not share a question with these", "DATA", each=True
    )
    judge: str | None = arg(
        "judge of answers (the step's own model); words: the truth's words decide", "MODEL"
    )
    held_out: float = arg(
        "share of questions held out, to stop training by (0.1)", "SHARE", shared.finite, default=0.1
    )
    idk_share: float | None = arg("share of train rows that abstain (as they come)", "SHARE", shared.finite)
    review: str | None = arg("write what a person may correct", "FILE")
    reviewed: str | None = arg(
        'take the lines marked "use": true of a corrected file', "FILE", flag="--import"
    )
    format: str | None = shared.FORMAT
    fields: str | None = shared.FIELDS
    limit: int | None = shared.LIMIT
    refresh: bool = shared.REFRESH


@command(
    "labels",
    "db3-task1-700 --data dev.jsonl --where split=0 --against split=1 --store /data/store",
    keeps=True,
)
def labels(
    shell: Shell,
    recipe: str = shared.RECIPE,
    *,
    session: Session = shared.session(*shared.OF_RECIPE, "sets"),
    data: Sequence[str] = arg("training questions to ingest first, or URIs", "PATH"),
    place: shared.StoreFlags,
    options: LabelFlags,
    dry_run: bool = arg("check everything, print the plan, ask nothing"),
    out: str | None = arg("folder (default: $RAYPIPE_HOME/runs/STORE/labels/RECIPE-STEP/TIME)", "DIR"),
) -> Shown[Any]:
    from raypipe.contrib.finetune.labels import make_labels, plan_labels

    store = place.uri(session, read=not dry_run)
    shared.say_data(shell, data, store)
    how = {"out": out, "session": session, **options.given()}
    if dry_run:
        return shown_plan(plan_labels(recipe, data, store, **how), options.refresh)
    done = make_labels(recipe, data, store, on_plan=tell(shell), began=shell.began, **how)
    return Shown(done, _print_made, after=done.eval.check_faults)


def _print_made(done: LabelsResult) -> None:
    from raypipe.contrib.finetune.tables import print_labels

    print_labels(console(), done.to_dict())
    if done.labels:
        model = shlex.quote(done.found["model"])
        print(f"next: raypipe finetune PRESET --labels {shlex.quote(str(done.folder))} --base {model}")


@command(
    "finetune",
    "db3-web --labels /data/labels/web --base llama-3-8b --name web-answer --out tuned",
    keeps=True,
)
def finetune(
    shell: Shell,
    preset: str = arg("a name under conf/finetune, or a path", "PRESET", needed=True),
    *,
    labels: str = arg("a folder that `raypipe labels` wrote", "DIR", needed=True),
    base: str = arg("model that gets the adapter, of loader vllm", "MODEL", needed=True),
    name: str | None = arg("name of the adapter in recipes (default: the preset's name)", "NAME"),
    out: str | None = arg(
        "folder for training.json and for models.yaml with the adapter's entry (neither)", "DIR"
    ),
    workers: int | None = arg("workers that share each batch (one for each GPU)", "N", shared.whole(1)),
    sets: Sequence[str] = arg(
        "field of the preset, such as steps=100", "FIELD=VALUE", flag="--set", each=True
    ),
    plan: bool = arg("estimate time and memory, and train nothing"),
    show: int | None = arg("only print N rows, with the trained tokens in ⟦ ⟧", "N", shared.whole(1)),
    models: str | None = shared.MODELS,
    cluster: str = shared.CLUSTER,
    place: shared.StoreFlags,
) -> Shown[Any] | int:
    from raypipe.contrib.finetune import finetune as training
    from raypipe.contrib.finetune.tables import print_plan

    session = shell.session(models, cluster)
    store = place.uri(session)
    if show:
        for text in training.show_rows(preset, labels, base, show, sets, session):
            print(f"{text}\n")
        return 0
    planned = training.plan_finetune(preset, labels, base, store, workers, sets, session, name, out)
    if plan:
        return Shown(planned, lambda planned: print_plan(console(), planned.to_dict()))
    print_plan(open_console(sys.stderr), planned.to_dict())
    shown = replace(session, progress=True)
    made = training.finetune(preset, labels, base, name, out, store, workers, sets, shown)
    return Shown(made, _print_trained)


def _print_trained(made: FinetuneResult) -> None:
    from raypipe.contrib.finetune.tables import print_finetune

    done = made.to_dict()
    entry = yaml.safe_dump(done["entry"], sort_keys=False, allow_unicode=True)
    print_finetune(console(), done, entry)
    if done["models"]:
        print(f"use it: raypipe eval RECIPE --models {done['models']}")
