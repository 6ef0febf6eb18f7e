"""Trained adapters in a real engine: they act, they differ, and the base next to them stays as it was."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from test_trainer import job_of, trained
from tuned import CONF, examples

from raypipe.contrib.finetune.preset import read_preset

pytestmark = [pytest.mark.engine, pytest.mark.drill]
STEPS = ("steps=100", "effective_batch=8", "save_every=100", "evaluate_every=0")


def test_an_adapter_acts_two_differ_and_the_base_stays(base, chats, tmp_path):
    from raypipe.contrib.finetune.model import write_adapter
    from raypipe.core.llm import Sampling
    from raypipe.models.engine import Engine
    from raypipe.models.hosts import EngineLimits

    job = job_of(base, chats, read_preset(CONF.find("finetune", "tiny"), STEPS))
    silent = tuple(
        r
        for r, e in zip(job.rows, [e for e in examples(48) if e.split == "train"], strict=True)
        if e.label == "i don't know"
    )
    adapters = []
    for name, rows in (("both", job.rows), ("silent", silent)):
        one = dataclasses.replace(job, rows=rows)
        tensors = trained(one, tmp_path / f"training-{name}")[0].tensors
        found = write_adapter(tmp_path / name, tensors, base, job.preset, {})
        adapters.append((name, found))
    paths = tuple(str(tmp_path / name) for name, _ in adapters)
    tuned = dataclasses.replace(base, adapters=tuple(adapters), adapter_paths=paths)
    asked = [e.messages for e in examples(48) if e.split == "held-out"][:6]

    async def replies():
        engine = Engine(tuned, EngineLimits())
        try:
            await engine.ready()
            names = (None, "both", "silent", None)
            sampling = Sampling(max_tokens=12, logprobs=True)
            return [await engine.generate(asked, sampling, name) for name in names], await engine.outputs(
                asked, sampling
            )
        finally:
            engine.close()

    (before, both, quiet, after), outputs = asyncio.run(replies())
    rows = [r for r in job.held_out][:6]
    assert [list(r.ids[: r.cut]) for r in rows] == [o.prompt_token_ids for o in outputs]
    said = [[r.text for r in part] for part in (before, both, quiet, after)]
    assert said[0] == said[3] and said[0] != said[1] and said[1] != said[2]
    assert set(said[2]) == {"i don't know"} and all(r.finish == "stop" for r in quiet)
