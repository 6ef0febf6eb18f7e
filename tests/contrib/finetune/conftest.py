"""A tiny chat model that can learn to end its replies."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuned import CONF, SYSTEM, sentences

from raypipe.contrib.finetune.preset import read_preset


@pytest.fixture(scope="session")
def trainable(tmp_path_factory) -> Path:
    from raypipe.contrib.world import standins

    folder = tmp_path_factory.mktemp("trainable")
    standins.build_chat(folder, [*sentences(200), "i don't know", SYSTEM], trainable=True)
    return folder


@pytest.fixture(scope="session")
def chats(trainable):
    from raypipe.contrib.finetune.rows import open_chat_tokenizer

    return open_chat_tokenizer(trainable, "tiny")


@pytest.fixture(scope="session")
def base(trainable):
    from raypipe.core.protocols import Model
    from raypipe.models.folder import identity

    weights = identity(trainable, "generator")
    return Model("tiny", "generator", "vllm", "", "", str(trainable), weights, max_model_len=512)


@pytest.fixture
def tiny():
    return read_preset(CONF.find("finetune", "tiny"))
