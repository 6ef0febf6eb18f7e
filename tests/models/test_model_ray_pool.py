"""Tiny BERT- and XLM-R-shaped models through FlagEmbedding's three classes in a pool of Ray Data actors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raypipe.core.protocols import Model
from raypipe.models.catalog import Catalog
from raypipe.models.kit import LocalKit


@pytest.fixture(scope="module")
def ray_here(local_ray: None) -> Any:
    import ray

    return ray


@pytest.mark.ray
@pytest.mark.drill
def test_flagembedding_in_an_actor_pool_gives_what_one_process_gives(
    ray_here: Any, entries: Callable[..., Catalog], tiny: Callable[[str, bool], Path], texts: list[str]
) -> None:
    body = {"kind": "embedder", "dim": 32, "max_tokens": 64}
    head = {"kind": "reranker", "loader": "flagembedding-reranker", "max_tokens": 64}
    models = entries(
        bert={**body, "loader": "flagembedding", "pooling": "mean", "path": str(tiny("bert", False))},
        m3={**body, "loader": "bge-m3", "pooling": "cls", "path": str(tiny("xlmr", False))},
        bert_rerank={**head, "path": str(tiny("bert", True))},
        xlmr_rerank={**head, "path": str(tiny("xlmr", True))},
    )
    named = {name: models.model(name) for name in ("bert", "m3", "bert_rerank", "xlmr_rerank")}

    class Columns:
        """A block of texts -> the same block with a column per model. Loads in the actor, one device each."""

        def __init__(self, models: dict[str, Model]) -> None:
            self.kit = LocalKit(None, backend="flagembedding", device="cpu", threads=1)
            self.models = models

        async def columns(self, texts: list[str]) -> dict[str, np.ndarray]:
            out = {}
            for name, model in self.models.items():
                if model.kind == "embedder":
                    out[name] = await self.kit.embedder(model)(texts, "passage")
                else:
                    out[name] = await self.kit.reranker(model)(
                        [("Who scored the winning goal?", t) for t in texts]
                    )
            return out

        def __call__(self, block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {**block, **asyncio.run(self.columns(block["text"].tolist()))}

    rows = [{"row": i, "text": t} for i, t in enumerate(texts * 3)]
    pool = ray_here.data.ActorPoolStrategy(size=2)
    done = (
        ray_here.data.from_items(rows, override_num_blocks=4)
        .map_batches(Columns, fn_constructor_args=(named,), batch_size=7, compute=pool, num_cpus=0.5)
        .take_all()
    )
    done.sort(key=lambda r: r["row"])
    assert [r["text"] for r in done] == [r["text"] for r in rows]
    expected = asyncio.run(Columns(named).columns([r["text"] for r in rows]))
    for name, values in expected.items():
        np.testing.assert_allclose(np.stack([r[name] for r in done]), values, atol=1e-5)
