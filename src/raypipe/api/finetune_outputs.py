"""The JSON of `finetune`: its keys and types."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import with_config
from typing_extensions import TypedDict

from raypipe.api.run_outputs import STRICT


@with_config(STRICT)
class _FourBit(TypedDict):
    on: bool
    because: str


@with_config(STRICT)
class _Memory(TypedDict):
    weights: float  # GiB, as all of these
    adapter: float  # with gradient and optimizer
    activations: float
    logits: float
    total: float
    arithmetic: str


@with_config(STRICT)
class _Estimate(TypedDict):
    rows: int  # labels to train on
    held_out: int
    left_out: int  # longer than max_seq_len
    steps: int  # at most
    epochs: float
    tokens: int  # that all steps read
    trained: int  # of these: answers and end marks
    longest: int  # tokens of the longest row
    looks: int  # at the held-out labels
    parameters: int  # of the base
    adapter_parameters: int
    adapted_layers: int
    memory: _Memory  # of one worker
    seconds: list[float] | None  # from, to; None: not known
    rate_from: str  # what `seconds` rests on


@with_config(STRICT)
class FinetunePlan(TypedDict):
    """`finetune --plan --json`."""

    format: Literal[2]
    preset: str
    base: str  # name of the model
    labels: str  # folder
    workers: int
    device: Literal["cpu", "cuda"]
    four_bit: _FourBit
    estimate: _Estimate


@with_config(STRICT)
class _Step(TypedDict):
    step: int  # from 1
    epoch: int  # from 0
    loss: float  # mean over the answer tokens of the batch, in nats
    norm: float  # of the gradient, before it is cut
    lr: float
    trained: int  # answer tokens of the batch


@with_config(STRICT)
class _Look(TypedDict):
    step: int
    loss: float  # mean over the answer tokens of the held-out labels, in nats


@with_config(STRICT)
class _Effect(TypedDict):
    base: float  # log-probability a token of the first label, by the base
    adapter: float  # and with the adapter


@with_config(STRICT)
class _Engine(TypedDict):
    base: str  # its reply to the first training prompt
    adapter: str  # the same with the adapter
    base_logprob: float
    adapter_logprob: float


@with_config(STRICT)
class _Labels(TypedDict):
    folder: str
    digest: str
    recipe: str  # digest of the recipe that they were made for; "": they were imported
    data: str  # digest of the questions and their golds
    rows: int
    held_out: int
    left_out: int
    counts: dict[str, dict[str, int]]  # rule, domain and split -> value -> labels


@with_config(STRICT)
class Finetuned(TypedDict):
    """`finetune --json`."""

    format: Literal[2]
    adapter: str  # as recipes call it
    identity: str  # sha256:... of its weights and configuration
    base: str  # identity of the base's weights
    base_name: str
    preset: dict[str, Any]  # as conf/schemas/finetune.json has it
    preset_name: str
    labels: _Labels
    plan: FinetunePlan
    workers: int
    device: Literal["cpu", "cuda"]
    seconds: float  # from the start of the workers to their end, of the run that finished it
    token_s: float | None  # seconds a token read, of all workers together; None: too few steps to say it
    steps_done: int
    step_taken: int  # after which the adapter was as it is kept
    ended_early: bool
    held_out_loss: float | None  # at that step; None: nothing is held out
    steps: list[_Step]
    looks: list[_Look]
    effect: _Effect
    engine: _Engine | None  # None: vLLM or `engines` of the cluster file is not here
    folder: str  # of the adapter
    models: str  # the models file that was written; "": none
    entry: dict[str, Any]  # of the models file: the base with the adapter
