"""Fine-tuning: a plan, rows to look at, and an adapter in the store with the entry that recipes need.

Ray is imported to train: a plan needs none.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic_core import to_jsonable_python

from raypipe.api.results import Result
from raypipe.api.session import Place, Session
from raypipe.contrib.finetune.engine_check import ask_both, engine_is_here, require_effect
from raypipe.contrib.finetune.estimate import TrainingEstimate
from raypipe.contrib.finetune.finetune_inputs import FinetuneInputs, read_inputs
from raypipe.contrib.finetune.model import Device, FourBit, write_adapter
from raypipe.core import config
from raypipe.core.errors import ConfError
from raypipe.core.textfile import require_writable, write_text
from raypipe.models.catalog import Catalog
from raypipe.store import Store, adapters
from raypipe.store.adapters import RECIPE, adapter_file
from raypipe.store.files import ADAPTERS, TRAININGS

if TYPE_CHECKING:
    from raypipe.contrib.finetune.engine_check import EngineReplies
    from raypipe.contrib.finetune.training_job import StepPoint, TrainedAdapter

RECORD = "training.json"  # the curves and the time of a training, next to its adapter
MODELS = "models.yaml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, repr=False)
class FinetunePlanResult(Result):
    """Plan of a training; one row."""

    preset: str  # its name
    base: str  # name of the model
    labels: str  # folder
    workers: int
    device: Device
    four_bit: FourBit
    estimate: TrainingEstimate

    def rows(self) -> list[Mapping[str, Any]]:
        return [{**to_jsonable_python(self.estimate), "memory_gib": self.estimate.memory.total}]


@dataclass(frozen=True, slots=True, repr=False)
class FinetuneResult(Result, record="made"):
    """A trained adapter; a row for each step."""

    made: Mapping[str, Any]  # as RECORD has it, with `folder`, `models` and `entry`

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return self.made["steps"]  # type: ignore[no-any-return]


def plan_finetune(
    preset: str | Path,
    labels: str | Path,
    base: str,
    store: Place = None,
    workers: int | None = None,
    sets: Sequence[str] = (),
    session: Session | None = None,
    name: str | None = None,
    out: str | Path | None = None,
) -> FinetunePlanResult:
    """Estimates steps, tokens, memory and time of a training. Trains nothing and starts no Ray.

    The arguments are those of `finetune`, and so are the errors: what would be refused is refused here."""
    session = session or Session()
    _called(preset, name, out)
    found = read_inputs(session, preset, labels, base, workers, sets)
    with tempfile.TemporaryDirectory(prefix="raypipe-plan-") as scratch:
        return _plan(found, session.store_to_fill(store, Path(scratch)))


def show_rows(
    preset: str | Path,
    labels: str | Path,
    base: str,
    count: int = 3,
    sets: Sequence[str] = (),
    session: Session | None = None,
) -> list[str]:
    """The first training rows as the base reads them; what is trained stands in ⟦ ⟧, token by token."""
    found = read_inputs(session or Session(), preset, labels, base, None, sets)
    return [found.shown(row) for row in found.rows[:count]]


def finetune(
    preset: str | Path,
    labels: str | Path,
    base: str,
    name: str | None = None,
    out: str | Path | None = None,
    store: Place = None,
    workers: int | None = None,
    sets: Sequence[str] = (),
    session: Session | None = None,
) -> FinetuneResult:
    """Trains a LoRA adapter on labels, in workers on Ray, and keeps it in the store.

    `preset` is a name under conf/finetune or a path, `labels` a folder that `raypipe labels` wrote, `base` a
    model of loader vllm in the models file, `name` what recipes call the adapter (default: the preset's
    name). `out` gets the report and a models file with the adapter's entry; None: neither is written.
    `workers`: None: one for each GPU of the cluster file, else one. `sets`: FIELD=VALUE in place of the
    preset's. A run that was stopped continues at its last checkpoint; one that is done trains nothing.

    Raises ConfError, DataError (also a loss that is no number), ModelMissing, ClusterTooSmall, and NoEffect
    for an adapter that changes nothing.
    """
    session = session or Session()
    called = _called(preset, name, out)
    found = read_inputs(session, preset, labels, base, workers, sets)
    opened = session.store_to_fill(store)
    planned = _plan(found, opened)
    folder = adapters.adapter_folder(called, found.run)
    if folder not in adapters.adapter_names(opened.files):
        with adapters.training_lease(opened.files, found.run, f"finetune {called}"):
            _train(found, planned, opened, session, called, folder)
    return _registered(found, opened, session, called, folder, None if out is None else Path(out))


def _called(preset: str | Path, name: str | None, out: str | Path | None) -> str:
    """The adapter's name. Raises ConfError for one that none may have, and for a folder that cannot get its
    entry."""
    called = name or Path(preset).name.removesuffix(".yaml")
    if not _NAME.fullmatch(called):
        raise ConfError(
            f"--name {called!r}: expected letters, digits, dots, dashes, underscores, a letter or digit first"
        )
    if out is not None:
        require_writable(Path(out), "--out")
        require_own(Path(out) / MODELS)
    return called


def _plan(found: FinetuneInputs, store: Store) -> FinetunePlanResult:
    names = adapters.adapter_names(store.files)
    raw = [adapters.adapter_file(store.files, n, RECORD) for n in names]
    estimated = found.estimate([r.decode() for r in raw if r is not None])
    return FinetunePlanResult(
        found.preset_name,
        found.model.name,
        str(found.labels.path),
        found.workers,
        found.device,
        found.four_bit,
        estimated,
    )


def _train(
    found: FinetuneInputs,
    planned: FinetunePlanResult,
    store: Store,
    session: Session,
    called: str,
    folder: str,
) -> None:
    """Trains, checks that the adapter acts, and puts it into the store."""
    from raypipe.contrib.finetune.workers import train_on_ray
    from raypipe.runs.cluster import connection

    connection.connect(session.settings.ray)
    began, told = time.monotonic(), list[tuple[int, float]]()  # step, and when it was done
    shown = session.shown()
    with shown, shown.task("trained", "steps", planned.estimate.steps) as task:

        def advance(point: StepPoint) -> None:
            task.reach(point.step)
            told.append((point.step, time.monotonic()))

        trained = train_on_ray(found.job, found.run, f"{store.uri}/{TRAININGS}", found.workers, advance)
    took = (time.monotonic() - began, _token_s(told, planned))
    with tempfile.TemporaryDirectory(prefix="raypipe-adapter-") as temporary:
        made = Path(temporary) / folder
        about = {"name": called, "labels": found.label_facts(), "step": trained.taken}
        about |= {"four_bit": found.four_bit.on, "seen": found.seen}
        identity = write_adapter(made, trained.tensors, found.model, found.preset, about)
        require_effect(trained.effect, None)
        replies = _asked(found, session, called, {p.name: p.read_bytes() for p in made.iterdir()})
        require_effect(trained.effect, replies)
        record = _record(found, planned, trained, called, identity, took, replies)
        (made / RECORD).write_text(json.dumps(record, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
        adapters.put_adapter(store.files, folder, {p.name: p.read_bytes() for p in made.iterdir()})
    adapters.remove_training(store.files, found.run)


def _token_s(told: Sequence[tuple[int, float]], planned: FinetunePlanResult) -> float | None:
    """Seconds a token from the first step to the last; None: too few steps to say it."""
    if len(told) < 2:
        return None
    share = (told[-1][0] - told[0][0]) / planned.estimate.steps
    return (told[-1][1] - told[0][1]) / (share * planned.estimate.tokens)


def _asked(
    found: FinetuneInputs, session: Session, called: str, adapter: Mapping[str, bytes]
) -> EngineReplies | None:
    """Returns what an engine of the session's cluster says with and without the adapter; None: vLLM is not
    here, or the cluster file has no engines."""
    file = session.cluster_file()
    if not engine_is_here() or (engines := file.engines) is None:
        return None
    room = found.model.max_model_len - found.rows[0].cut
    limits, needs = engines.limits(file.device), engines.needs(found.model)
    return ask_both(found.model, called, adapter, found.examples[0].messages, room, limits, needs)


def _record(
    found: FinetuneInputs,
    planned: FinetunePlanResult,
    trained: TrainedAdapter,
    called: str,
    identity: str,
    took: tuple[float, float | None],
    replies: EngineReplies | None,
) -> dict[str, Any]:
    """Returns what a training did: the file RECORD, and what the report shows. `took`: seconds, and those a
    token."""
    look = trained.best_look
    return {
        "adapter": called,
        "identity": identity,
        "base": found.model.weights,
        "base_name": found.model.name,
        "preset": to_jsonable_python(found.preset),
        "preset_name": found.preset_name,
        "labels": found.label_facts(),
        "plan": planned.to_dict(),
        "workers": found.workers,
        "device": found.device,
        "seconds": round(took[0], 1),
        "token_s": took[1],
        "steps_done": len(trained.steps),
        "step_taken": trained.taken,
        "ended_early": len(trained.steps) < planned.estimate.steps,
        "held_out_loss": None if look is None else look.loss,
        "steps": to_jsonable_python(trained.steps),
        "looks": to_jsonable_python(trained.looks),
        "effect": {"base": trained.effect[0], "adapter": trained.effect[1]},
        "engine": to_jsonable_python(replies),
    }


def _registered(
    found: FinetuneInputs, store: Store, session: Session, called: str, folder: str, out: Path | None
) -> FinetuneResult:
    """The result of an adapter that is in the store, with its entry of models.yaml."""
    raw = adapters.adapter_file(store.files, folder, RECORD)
    assert raw is not None  # its recipe is written last
    place = adapter_place(store, session.settings.home, folder)
    models = None if out is None else out / MODELS
    entry = entry_with(session.catalog(), found.model.name, called, place, models)
    if models is not None:
        copies = {models.with_name(file): file for file in (RECORD, adapters.RECIPE)}
        for copy in copies:
            copy.unlink(missing_ok=True)  # of another training
        write_entry(models, found.model.name, entry)
        for copy, file in copies.items():
            if (content := adapters.adapter_file(store.files, folder, file)) is not None:
                copy.write_bytes(content)
    more = {"folder": place, "models": str(models or ""), "entry": {found.model.name: entry}}
    return FinetuneResult({**json.loads(raw), **more})


_MADE = "# Made by `raypipe finetune`."  # how a models file begins that may be written again


def adapter_place(store: Store, home: Path, folder: str) -> str:
    """Returns where an adapter of a store lies on this machine: engines load folders. Of a bucket that is a
    copy under `home`, whose name says which training it is of."""
    if store.files.local:
        return f"{store.uri}/{ADAPTERS}/{folder}"
    here = home / "adapters" / folder
    if not (here / RECIPE).is_file():
        draft = here.with_name(f".{folder}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file in store.files.names(f"{ADAPTERS}/{folder}"):
            (draft / file).write_bytes(adapter_file(store.files, folder, file) or b"")
        draft.rename(here)
    return str(here)


def entry_with(
    catalog: Catalog, base: str, called: str, place: str, models: Path | None = None
) -> dict[str, Any]:
    """The base's entry with one adapter more, and those that the file `models` gives the base already; its
    folders are absolute."""
    entry, file = catalog.entries[base], catalog.files[base]
    found = dict(config.read_yaml(file)[base])
    if entry.path:
        found["path"] = str((file.parent / entry.path).resolve())
    others = {n: str((file.parent / p).resolve()) for n, p in entry.adapters.items()}
    earlier = _read(models).get(base, {}).get("adapters", {})
    kept = {n: p for n, p in earlier.items() if Path(p).is_dir()}  # others were pruned
    return {**found, "adapters": {**others, **kept, called: place}}


def require_own(models: Path) -> None:
    """Raises ConfError for a models file that `write_entry` did not make, or that cannot be read any more."""
    if models.exists() and not (models.is_file() and models.read_bytes().startswith(_MADE.encode())):
        raise ConfError(
            f"--out: {models} was not made by `raypipe finetune`, which would write it again without its "
            "comments. Name another folder"
        )
    _read(models)


def write_entry(models: Path, base: str, entry: Mapping[str, Any]) -> None:
    """Writes an entry into a models file that this command made; other entries in it stay."""
    made = yaml.safe_dump({**_read(models), base: dict(entry)}, sort_keys=False, allow_unicode=True)
    write_text(models, f"{_MADE} Use it: raypipe eval RECIPE --models {models}\n{made}")


def _read(models: Path | None) -> dict[str, Any]:
    return config.read_yaml(models) if models is not None and models.is_file() else {}
