"""The kit of one process: loads once, keeps the event loop free, refuses what a step cannot have meant."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from checkout import ROOT

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.index import PassageWords, VectorHit
from raypipe.core.protocols import Model
from raypipe.models import catalog
from raypipe.models.catalog import Catalog
from raypipe.models.kit import LocalKit

CONF = ROOT / "conf/models.yaml"
Entries = Callable[..., Catalog]
Tiny = Callable[[str, bool], Path]
PIN = "0123456789abcdef0123456789abcdef01234567"


class OneText:
    """An index that holds one passage."""

    async def search(
        self, model: Model, vectors: np.ndarray, scopes: Sequence[tuple[str, ...] | None], top: int
    ) -> list[list[VectorHit]]:
        return [[VectorHit("s", (0, 3), (0, 3), 1.0)][:top] for _ in scopes]

    async def texts(self, chunks: Sequence[str]) -> list[str]:
        return ["one" for _ in chunks]

    async def source_texts(self, sources: Sequence[str]) -> list[str | None]:
        return ["one" if s == "s" else None for s in sources]

    async def words(self, analyzer: str, scope: tuple[str, ...] | None) -> PassageWords:
        return PassageWords((), np.zeros(1, np.int64), np.zeros(0, np.uint64))

    async def postings(self, analyzer: str, words: np.ndarray) -> None:
        return None


def tiny_models(entries: Entries, tiny: Tiny) -> Catalog:
    body, head = str(tiny("bert", False)), str(tiny("xlmr", True))
    embedder = {
        "kind": "embedder",
        "loader": "flagembedding",
        "dim": 32,
        "pooling": "mean",
        "max_tokens": 64,
        "path": body,
    }
    return entries(
        one=embedder,
        same=embedder,
        rerank={"kind": "reranker", "loader": "flagembedding-reranker", "max_tokens": 64, "path": head},
        tokens={"kind": "tokenizer", "loader": "tokens", "path": head},
        words={"kind": "tokenizer", "loader": "whitespace"},
        hashed={"kind": "embedder", "loader": "hash", "dim": 16},
        far={**{k: v for k, v in embedder.items() if k != "path"}, "repo": "org/far", "revision": PIN},
    )


def test_importing_the_kit_imports_no_model_library() -> None:
    heavy = {"torch", "transformers", "FlagEmbedding", "tokenizers"}
    script = f"import sys, raypipe.models.kit; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["flagembedding", "transformers"])
def test_nothing_in_is_nothing_out_with_the_right_shape(entries: Entries, tiny: Tiny, backend: str) -> None:
    models, kit = tiny_models(entries, tiny), LocalKit(None, backend=backend)  # type: ignore[arg-type]

    async def ask() -> None:
        assert (await kit.embedder(models.model("one"))([], "query")).shape == (0, 32)
        assert (await kit.reranker(models.model("rerank"))([])).shape == (0,)

    asyncio.run(ask())
    assert kit.loading_s() == 0, "nothing was loaded for it"


@pytest.mark.slow
def test_a_model_is_loaded_once_under_all_its_names_and_all_the_indexes(
    entries: Entries, tiny: Tiny, texts: list[str]
) -> None:
    models, kit = tiny_models(entries, tiny), LocalKit(None, backend="transformers", threads=1)

    async def ask() -> list[np.ndarray]:
        calls = [
            k.embedder(models.model(n)) for k in (kit, kit.with_index(OneText())) for n in ("one", "same")
        ]
        return await asyncio.gather(*(call(texts, "passage") for call in calls))

    vectors = asyncio.run(ask())
    assert all((v == vectors[0]).all() for v in vectors)
    assert len(kit._loaded) == 1


def test_an_index_belongs_to_the_kit_it_was_given_to() -> None:
    kit = LocalKit(None)
    with pytest.raises(ConfError, match="this kit has no index"):
        kit.index()
    index = OneText()
    assert kit.with_index(index).index() is index
    with pytest.raises(ConfError):
        kit.index()


@pytest.mark.slow
def test_the_event_loop_runs_on_while_a_model_computes() -> None:
    minilm = catalog.read(yaml.safe_load(CONF.read_text()), CONF).model("all-MiniLM-L6-v2")
    embed = LocalKit(None, backend="transformers").embedder(minilm)

    async def ask() -> tuple[int, float]:
        work = asyncio.ensure_future(embed(["the tide turned and the boats came in " * 12] * 20, "passage"))
        began, turns = time.perf_counter(), 0
        while not work.done():
            await asyncio.sleep(0.01)
            turns += 1
        return turns, time.perf_counter() - began

    turns, seconds = asyncio.run(ask())
    assert turns > 10 * seconds, f"{turns} turns of the loop in {seconds:.2f} s"


@pytest.mark.slow
def test_a_model_of_another_kind_and_a_model_that_is_not_here_are_refused_when_a_step_is_opened(
    entries: Entries, tiny: Tiny
) -> None:
    models, kit = tiny_models(entries, tiny), LocalKit(None)
    with pytest.raises(ConfError, match="'rerank': expected kind 'embedder', found 'reranker'"):
        kit.embedder(models.model("rerank"))
    with pytest.raises(ConfError, match="'one': expected kind 'reranker', found 'embedder'"):
        kit.reranker(models.model("one"))
    with pytest.raises(ModelMissing, match="hf download org/far"):
        kit.embedder(models.model("far"))
    with pytest.raises(ConfError, match="'hashed' has no tokenizer"):
        kit.tokenizer(models.model("hashed"))


@pytest.mark.slow
def test_tokens_are_spans_in_order_without_special_tokens_and_without_a_limit(
    entries: Entries, tiny: Tiny, texts: list[str]
) -> None:
    models, kit = tiny_models(entries, tiny), LocalKit(None)
    text = " ".join(texts * 20)
    for name in ("tokens", "words", "one"):  # an embedder's own tokenizer may be asked for, too
        spans = kit.tokenizer(models.model(name))(text)
        assert len(spans) > 500 and spans == sorted(spans) and spans[-1][1] == len(text)
        covered = {i for a, b in spans for i in range(a, b)}
        assert all(i in covered or text[i].isspace() for i in range(len(text)))
