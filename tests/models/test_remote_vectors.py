"""Embedders and rerankers behind an address: each dialect's requests, and what is refused of its answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from chat_server import serving

from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError, Unavailable
from raypipe.models import load
from raypipe.models.catalog import Catalog
from raypipe.models.fake import HashEmbedder, OverlapReranker
from raypipe.models.hosts import EndpointAddress
from raypipe.models.remote import BATCH, RemoteModel

Entries = Callable[..., Catalog]
EMBEDDER = {"kind": "embedder", "loader": "embeddings", "endpoint": "e", "model": "org/m", "dim": 16}
RERANKER = {"kind": "reranker", "loader": "rerank", "endpoint": "e", "model": "org/r", "dialect": "jina"}
TEXTS = [f"text {i} of the harbour" for i in range(BATCH + 3)]


def vectors(texts: list[str], dim: int = 16) -> list[list[float]]:
    return (3 * HashEmbedder(dim).embed(texts, "passage")).tolist()


def scores(query: str, passages: list[str]) -> list[float]:
    return OverlapReranker().score([(query, p) for p in passages]).tolist()


class Backend:
    """A server that computes with the fakes, in the forms of the real ones. `change` alters an answer."""

    def __init__(self, change: Callable[[Any], Any] = lambda tree: tree) -> None:
        self.change, self.bodies = change, []

    def __call__(self, request: Any, body: dict[str, Any]) -> None:
        self.bodies.append((request.path, body))
        tree: Any
        if "texts" in body:  # TEI, best first
            found = scores(body["query"], body["texts"])
            tree = [{"index": i, "score": found[i]} for i in np.argsort(found)[::-1].tolist()]
        elif "documents" in body:
            found = scores(body["query"], body["documents"])
            order = np.argsort(found)[::-1].tolist()
            tree = {"results": [{"index": i, "relevance_score": found[i]} for i in order]}
        else:
            name = "data" if request.path == "/pooling" else "embedding"
            rows = enumerate(vectors(body["input"]))
            tree = {"data": [{"index": i, name: v} for i, v in rows][::-1]}
        request.send(json.dumps(self.change(tree)))


def opened(model: Any, url: str, **more: Any) -> Any:
    async def sleep(seconds: float) -> None:
        pass

    return RemoteModel(model, EndpointAddress(url, **more), sleep)


@pytest.mark.parametrize(
    ("dialect", "path"), [("openai", "/v1/embeddings"), ("vllm", "/v1/embeddings"), ("pooling", "/pooling")]
)
def test_vectors_come_in_the_order_of_the_texts_as_unit_rows_whatever_the_dialect(entries, dialect, path):
    model = entries(m=EMBEDDER | {"dialect": dialect, "query_instruction": "query: "}).model("m")
    backend = Backend()
    with serving(backend) as server:
        embedder = opened(model, server.url)
        found = embedder.embed(TEXTS, "passage")
        query = embedder.embed(["harbour"], "query")
    assert np.allclose(found, HashEmbedder(16).embed(TEXTS, "passage"), atol=1e-6)
    assert np.allclose(query, HashEmbedder(16).embed(["query: harbour"], "query"), atol=1e-6)
    assert [p for p, _ in backend.bodies] == [path] * 3, "64 texts in a request"
    first = backend.bodies[0][1]
    assert first["model"] == "org/m" and ("truncate_prompt_tokens" in first) == (dialect != "openai")


@pytest.mark.parametrize("dialect", ["jina", "cohere", "vllm", "tei"])
def test_scores_come_in_the_order_of_the_pairs_whatever_the_dialect(entries, dialect):
    model = entries(m=RERANKER | {"dialect": dialect}).model("m")
    pairs = [(q, p) for q in ("text 3", "harbour of text") for p in TEXTS]
    backend = Backend()
    with serving(backend) as server:
        found = opened(model, server.url).score(pairs)
    assert np.allclose(found, OverlapReranker().score(pairs)) and found.dtype == np.float32
    assert len(backend.bodies) == 4, "one request for each query and 64 passages"
    assert ("return_documents" in backend.bodies[0][1]) == (dialect == "jina")


def drop_one(tree: Any) -> Any:
    rows = tree["data"] if "data" in tree else tree["results"]
    rows.pop()
    return tree


def no_number(tree: Any) -> Any:
    row = (tree.get("data") or tree.get("results"))[0]
    if "embedding" in row:
        row["embedding"][0] = float("nan")
    else:
        row["relevance_score"] = float("inf")
    return tree


@pytest.mark.parametrize(
    ("entry", "change", "message"),
    [
        (EMBEDDER, drop_one, "expected 3 vectors"),
        (EMBEDDER | {"dim": 8}, lambda t: t, "expected vectors of dim 8.*found 16"),
        (EMBEDDER, no_number, "finite"),
        (EMBEDDER, lambda t: {"data": [{"index": i, "embedding": [0.0] * 16} for i in range(3)]}, "zeros"),
        (EMBEDDER, lambda t: {"error": "none"}, "another answer"),
        (EMBEDDER, lambda t: {"data": [{"index": 0, "embedding": [1.0] * 16}] * 3}, "expected 3 vectors"),
        (RERANKER, drop_one, "expected 3 scores"),
        (RERANKER, no_number, "finite"),
        (RERANKER, lambda t: {"results": [{"index": 0, "relevance_score": 1.0}] * 3}, "expected 3 scores"),
        (RERANKER | {"dialect": "tei"}, lambda t: {"error": "none"}, "dialect tei"),
    ],
)
def test_an_answer_of_another_count_length_or_form_is_a_clear_error(entries, entry, change, message):
    model = entries(m=entry).model("m")
    with serving(Backend(change)) as server, pytest.raises(ConfError, match=message) as e:
        if model.kind == "embedder":
            opened(model, server.url).embed(TEXTS[:3], "passage")
        else:
            opened(model, server.url).score([("q", t) for t in TEXTS[:3]])
    assert server.url in str(e.value)


@pytest.mark.parametrize(
    ("status", "error", "message", "requests"),
    [
        (503, Unavailable, "status 503", 3),
        (429, Unavailable, "status 429", 3),
        (401, ConfError, r"Check the key.*", 1),
        (404, ConfError, "the model's name", 1),
        (413, ValueError, "refuses an input", 1),
    ],
)
def test_whose_trouble_a_status_is(entries, status, error, message, requests):
    asked = []

    def answer(request: Any, body: Any) -> None:
        asked.append(body)
        request.send("your key s3cret", status)

    model = entries(m=EMBEDDER).model("m")
    with serving(answer) as server, pytest.raises(error, match=message) as e:
        opened(model, server.url, key="s3cret", tries=3).embed(["x"], "query")
    assert len(asked) == requests and "s3cret" not in str(e.value)


@pytest.mark.parametrize("change", ["no index", "null index", "no first index", "bytes", "nested"])
def test_vectors_count_by_their_index_or_their_place_and_may_be_bytes(entries, change):
    def changed(tree: Any) -> Any:
        rows = tree["data"][::-1]
        for row in rows:
            if change == "no index" or (change == "no first index" and row["index"] == 0):
                del row["index"]
            if change == "null index":
                row["index"] = None
            if change == "nested":
                row["embedding"] = [row["embedding"]]
            if change == "bytes":
                row["embedding"] = base64.b64encode(np.array(row["embedding"], "<f4").tobytes()).decode()
        return {"data": rows}

    with serving(Backend(changed)) as server:
        found = opened(entries(m=EMBEDDER).model("m"), server.url).embed(TEXTS[:5], "passage")
    assert np.allclose(found, HashEmbedder(16).embed(TEXTS[:5], "passage"), atol=1e-6)


@pytest.mark.parametrize("most", [pytest.param(1, marks=pytest.mark.drill), 10, 32])
def test_a_server_that_takes_fewer_inputs_gets_each_once_and_is_known_after_the_first_round(entries, most):
    backend, sizes = Backend(), []

    def limited(request: Any, body: dict[str, Any]) -> None:
        n = len(body.get("input", body.get("documents", ())))
        sizes.append(n)
        if n > most:
            return request.send(f"batch size {n} > maximum allowed batch size {most}", 422)
        backend(request, body)

    with serving(limited) as server:
        embedder = opened(entries(m=EMBEDDER).model("m"), server.url)
        found = embedder.embed(TEXTS, "passage")
        refused = sum(n > most for n in sizes)
        assert sum(n for n in sizes if n <= most) == len(TEXTS)
        assert np.allclose(embedder.embed(TEXTS, "passage"), found)
        assert sum(n > most for n in sizes) == refused
        ranker = opened(entries(m=RERANKER).model("m"), server.url)
        pairs = [("text 3", p) for p in TEXTS]
        assert np.allclose(ranker.score(pairs), OverlapReranker().score(pairs))


def test_a_text_that_is_refused_alone_is_a_value_error_after_few_requests(entries):
    asked = []

    def refuses(request: Any, body: dict[str, Any]) -> None:
        asked.append(len(body["input"]))
        request.send("no", 400)

    with serving(refuses) as server, pytest.raises(ValueError, match="refuses an input"):
        opened(entries(m=EMBEDDER).model("m"), server.url).embed(TEXTS[:64], "passage")
    assert asked == [64, 32, 16, 8, 4, 2, 1]


def test_a_server_that_does_not_know_the_form_of_numbers_is_not_told_it(entries):
    backend = Backend()

    def strict(request: Any, body: dict[str, Any]) -> None:
        if "encoding_format" in body:
            return request.send('{"error": {"message": "Unsupported: encoding_format"}}', 400)
        backend(request, body)

    with serving(strict) as server:
        found = opened(entries(m=EMBEDDER).model("m"), server.url).embed(TEXTS[:3], "query")
    assert found.shape == (3, 16)


def test_a_server_that_is_down_is_unavailable(entries):
    model = entries(m=EMBEDDER).model("m")
    with serving(Backend()) as server:
        pass
    with pytest.raises(Unavailable, match="ConnectError"):
        opened(model, server.url, tries=2).embed(["x"], "query")


def test_endpoint_model_dialect_and_revision_are_identity(entries):
    changed = [
        {},
        {"endpoint": "f"},
        {"model": "other"},
        {"dialect": "vllm"},
        {"revision": "2026-11"},
        {"dim": 32},
    ]
    found = entries(**{f"m{i}": EMBEDDER | c for i, c in enumerate(changed)})
    assert len({model_identity(found.model(f"m{i}")) for i in range(len(changed))}) == len(changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dialect": "tei"}, "dialect: expected one of openai, vllm, pooling"),
        ({"pooling": "cls"}, "pooling: .* from its folder or its server"),
        ({"endpoint": ""}, "endpoint and model"),
        ({"path": "m"}, "has no weights"),
        ({"dim": 0}, "needs dim"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(entries, change, message):
    with pytest.raises(ConfError, match=message):
        entries(m=EMBEDDER | change)


def test_an_endpoint_that_the_cluster_file_lacks_is_named(entries):
    with pytest.raises(ConfError, match="no endpoint named 'e'; the cluster file has none"):
        load.open_remote(entries(m=EMBEDDER).model("m"), {})
