"""Fine-tuning: its plan, its rows as text, and a trained adapter in the store with its models-file entry.

Ray is imported only for a training: a plan runs without it.
"""

from __future__ import annotations

import importlib.util
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
from raypipe.contrib.finetune.engine_check import ask_both, require_effect
from raypipe.contrib.finetune.estimate import TrainingEstimate
from raypipe.contrib.finetune.finetune_inputs import FinetuneInputs, read_inputs
from raypipe.contrib.finetune.model import Device, FourBit, write_adapter
from raypipe.contrib.finetune.rows import shown
from raypipe.core import config
from raypipe.core.errors import ConfError
from raypipe.core.textfile import require_writable, write_text
from raypipe.models.catalog import Catalog
from raypipe.store import Store, adapters
from raypipe.store.files import ADAPTERS, TRAININGS

if TYPE_CHECKING:
    from raypipe.contrib.finetune.engine_check import EngineReplies
    from raypipe.contrib.finetune.training_job import StepPoint, TrainedAdapter

RECORD = "training.json"  # loss curves and time of a training, stored with its adapter
MODELS = "models.yaml"
_MADE = "# Made by `raypipe finetune`."  # beginning of a models file that `finetune` may overwrite
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, repr=False)
class FinetunePlanResult(Result):
    """Plan of a training, as one row."""

    preset: str  # name
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
    """Record of a trained adapter; one row per step."""

    made: Mapping[str, Any]  # content of RECORD, and `folder`, `models` and `entry`

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
    """Estimates steps, tokens, memory and time of a training. Trains nothing and does not start Ray.

    Takes the arguments of `finetune` and raises the same errors for wrong inputs."""
    session = session or Session()
    _called(preset, name, out)
    inputs = read_inputs(session, preset, labels, base, workers, sets)
    with tempfile.TemporaryDirectory(prefix="raypipe-plan-") as scratch:
        return _plan(inputs, session.store_to_fill(store, Path(scratch)))


def show_rows(
    preset: str | Path,
    labels: str | Path,
    base: str,
    count: int = 3,
    sets: Sequence[str] = (),
    session: Session | None = None,
) -> list[str]:
    """Returns the first training rows as the base reads them. ⟦ ⟧ encloses the trained tokens, split by |."""
    inputs = read_inputs(session or Session(), preset, labels, base, None, sets)
    return [shown(inputs.chats, row) for row in inputs.rows[:count]]


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
    """Trains a LoRA adapter on labels, in workers on Ray, and puts the adapter into the store.

    `preset`: a name under conf/finetune, or a path. `labels`: a folder that `raypipe labels` wrote. `base`: a
    model of loader vllm in the models file. `name`: the adapter's name in recipes; None: the preset's name.
    `out`: folder for the report and a models file with the adapter's entry; None: neither is written.
    `workers`: a divisor of a step's rows; None: the largest for which the GPUs suffice, or one on CPUs.
    `sets`: FIELD=VALUE, replacing fields of the preset. A stopped run continues at its last checkpoint. A
    finished run trains nothing.

    Raises ConfError, DataError (also for a loss that is not finite), ModelMissing, ClusterTooSmall, and
    NoEffect for an adapter that changes nothing.
    """
    session = session or Session()
    called = _called(preset, name, out)
    inputs = read_inputs(session, preset, labels, base, workers, sets)
    opened = session.store_to_fill(store)
    planned = _plan(inputs, opened)
    folder = adapters.adapter_folder(called, inputs.run)
    if folder not in adapters.adapter_names(opened.files):
        with adapters.training_lease(opened.files, inputs.run, f"finetune {called}"):
            _train(inputs, planned, opened, session, called, folder)
    return _registered(inputs, opened, session, called, folder, None if out is None else Path(out))


def _called(preset: str | Path, name: str | None, out: str | Path | None) -> str:
    """Returns the adapter's name. Raises ConfError if it is invalid or `out` cannot hold the files."""
    called = name or Path(preset).name.removesuffix(".yaml")
    if not _NAME.fullmatch(called):
        raise ConfError(
            f"--name {called!r}: expected letters, digits, dots, dashes, underscores, a letter or digit first"
        )
    if out is not None:
        require_writable(Path(out), "--out")
        models = Path(out) / MODELS
        if models.exists() and not (models.is_file() and models.read_bytes().startswith(_MADE.encode())):
            why = "was not made by `raypipe finetune`, which would write it again without its comments"
            raise ConfError(f"--out: {models} {why}. Name another folder")
        _read(models)
    return called


def _plan(inputs: FinetuneInputs, store: Store) -> FinetunePlanResult:
    names = adapters.adapter_names(store.files)
    raw = [adapters.adapter_file(store.files, n, RECORD) for n in names]
    estimated = inputs.estimate([r.decode() for r in raw if r is not None])
    return FinetunePlanResult(
        inputs.preset_name,
        inputs.model.name,
        str(inputs.labels.path),
        inputs.workers,
        inputs.device,
        inputs.four_bit,
        estimated,
    )


def _train(
    inputs: FinetuneInputs,
    planned: FinetunePlanResult,
    store: Store,
    session: Session,
    called: str,
    folder: str,
) -> None:
    """Trains, checks that the adapter has an effect, and puts it into the store."""
    from raypipe.contrib.finetune.workers import train_on_ray
    from raypipe.runs.cluster import connection

    connection.connect(session.settings.ray)
    began, told = time.monotonic(), list[tuple[int, float]]()  # step, and the time of its end
    progress = session.shown()
    with progress, progress.task("trained", "steps", planned.estimate.steps) as task:

        def advance(point: StepPoint) -> None:
            task.reach(point.step)
            told.append((point.step, time.monotonic()))

        trained = train_on_ray(inputs.job, inputs.run, f"{store.uri}/{TRAININGS}", inputs.workers, advance)
    took = time.monotonic() - began
    token_s = None  # mean seconds per token after the first step; None: fewer than two steps
    if len(told) > 1:
        share = (told[-1][0] - told[0][0]) / planned.estimate.steps
        token_s = (told[-1][1] - told[0][1]) / (share * planned.estimate.tokens)
    with tempfile.TemporaryDirectory(prefix="raypipe-adapter-") as temporary:
        made = Path(temporary) / folder
        about = {"name": called, "labels": inputs.label_facts(), "step": trained.taken}
        about |= {"four_bit": inputs.four_bit.on, "seen": inputs.seen}
        identity = write_adapter(made, trained.tensors, inputs.model, inputs.preset, about)
        require_effect(trained.effect, None)
        replies = _asked(inputs, session, called, {p.name: p.read_bytes() for p in made.iterdir()})
        require_effect(trained.effect, replies)
        record = _record(inputs, planned, trained, called, identity, replies)
        record |= {"seconds": round(took, 1), "token_s": token_s}
        (made / RECORD).write_text(json.dumps(record, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
        adapters.put_adapter(store.files, folder, {p.name: p.read_bytes() for p in made.iterdir()})
    store.files.remove_folder(f"{TRAININGS}/{inputs.run}")


def _asked(
    inputs: FinetuneInputs, session: Session, called: str, adapter: Mapping[str, bytes]
) -> EngineReplies | None:
    """Returns an engine's replies with and without the adapter. None: vLLM is not installed here, or the
    cluster file has no engines."""
    file = session.cluster_file()
    if importlib.util.find_spec("vllm") is None or (engines := file.engines) is None:
        return None
    room = inputs.model.max_model_len - inputs.rows[0].cut
    limits, needs = engines.limits(file.device), engines.needs(inputs.model)
    return ask_both(inputs.model, called, adapter, inputs.prompt, room, limits, needs)


def _record(
    inputs: FinetuneInputs,
    planned: FinetunePlanResult,
    trained: TrainedAdapter,
    called: str,
    identity: str,
    replies: EngineReplies | None,
) -> dict[str, Any]:
    """Returns the record of a training, without its times: content of the file RECORD and of the report."""
    look = trained.best_look
    return {
        "adapter": called,
        "identity": identity,
        "base": inputs.model.weights,
        "base_name": inputs.model.name,
        "preset": to_jsonable_python(inputs.preset),
        "preset_name": inputs.preset_name,
        "labels": inputs.label_facts(),
        "plan": planned.to_dict(),
        "workers": inputs.workers,
        "device": inputs.device,
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
    inputs: FinetuneInputs, store: Store, session: Session, called: str, folder: str, out: Path | None
) -> FinetuneResult:
    """Returns the result for an adapter in the store, and writes its report and entry to `out`."""
    raw = adapters.adapter_file(store.files, folder, RECORD)
    assert raw is not None  # an adapter's recipe is written last, so the record exists
    place = adapter_place(store, session.settings.home, folder)
    models = None if out is None else out / MODELS
    entry = entry_with(session.catalog(), inputs.model.name, called, place, models)
    if models is not None:
        copies = {models.with_name(file): file for file in (RECORD, adapters.RECIPE)}
        for copy in copies:
            copy.unlink(missing_ok=True)  # may be from another training
        write_entry(models, inputs.model.name, entry)
        for copy, file in copies.items():
            if (content := adapters.adapter_file(store.files, folder, file)) is not None:
                copy.write_bytes(content)
    more = {"folder": place, "models": str(models or ""), "entry": {inputs.model.name: entry}}
    return FinetuneResult({**json.loads(raw), **more})


def adapter_place(store: Store, home: Path, folder: str) -> str:
    """Returns an adapter's folder on this machine, for engines. If the store is a bucket, the folder is a
    copy under `home`. Its name has the training's digest, so each training has its own copy."""
    if store.files.local:
        return f"{store.uri}/{ADAPTERS}/{folder}"
    here = home / "adapters" / folder
    if not (here / adapters.RECIPE).is_file():
        draft = here.with_name(f".{folder}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file in store.files.names(f"{ADAPTERS}/{folder}"):
            (draft / file).write_bytes(adapters.adapter_file(store.files, folder, file) or b"")
        draft.rename(here)
    return str(here)


def entry_with(
    catalog: Catalog, base: str, called: str, place: str, models: Path | None = None
) -> dict[str, Any]:
    """Returns the base's models-file entry with one more adapter. Keeps the adapters that the file `models`
    already lists for the base. All paths are absolute."""
    entry, file = catalog.entries[base], catalog.files[base]
    values = dict(config.read_yaml(file)[base])
    if entry.path:
        values["path"] = str((file.parent / entry.path).resolve())
    others = {n: str((file.parent / p).resolve()) for n, p in entry.adapters.items()}
    earlier = _read(models).get(base, {}).get("adapters", {})
    kept = {n: p for n, p in earlier.items() if Path(p).is_dir()}  # missing folders were pruned
    return {**values, "adapters": {**others, **kept, called: place}}


def write_entry(models: Path, base: str, entry: Mapping[str, Any]) -> None:
    """Writes an entry into a models file of this command. Its other entries stay."""
    made = yaml.safe_dump({**_read(models), base: dict(entry)}, sort_keys=False, allow_unicode=True)
    write_text(models, f"{_MADE} Use it: raypipe eval RECIPE --models {models}\n{made}")


def _read(models: Path | None) -> dict[str, Any]:
    return config.read_yaml(models) if models is not None and models.is_file() else {}
