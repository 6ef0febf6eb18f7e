"""Models behind an address: embedders and rerankers, and the checks before work begins.

Vectors come from `/v1/embeddings` and vLLM's `/pooling`, scores from `/rerank`. What comes back is checked
before it is used: one vector or score for each input, of the length that the entry says, finite. Anything
else is a ConfError, since every further answer would be as wrong. An address that is down or overloaded is
unavailable; an input that it refuses is the input's. `require_served` asks whether a server has a model: it
lists what is served where the server tells, else it sends one chat of one token. `describe` reads the fields
of an entry from a server. Knows HTTP, no model library.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.protocols import Model, Role
from raypipe.core.retry import RETRY_STATUSES, Backoff, retry_after_s
from raypipe.models.entry import DIALECTS
from raypipe.models.load import SHOWN, EndpointAddress

LISTING_TIMEOUT_S = 10.0
BATCH = 64  # texts, or passages of one query, in a request: what servers take by default
FIRST_WAIT_S = 0.5  # before the second try, doubling, with jitter
INPUT_STATUSES = frozenset({400, 413, 422})
"""Statuses that may say something about an input: too long, or not a text."""


class RemoteModel:
    """An embedder or a reranker behind an address: vectors of `/embeddings`, with dialect pooling of vLLM's
    `/pooling`; scores of `/rerank`, in the dialects of vLLM, Jina, Cohere and TEI. Requests are tried again
    where that may help, at most `concurrency` at a time."""

    def __init__(
        self, model: Model, at: EndpointAddress, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`sleep` is for tests."""
        self._model, self._at, self._named = model, at, f"model {model.name!r} at {at.url}"
        self._sleep = sleep
        self._client = httpx.Client(timeout=at.timeout_s, headers=at.headers, follow_redirects=False)
        self._threads = ThreadPoolExecutor(at.concurrency, thread_name_prefix="requests")

    def _post_all(self, path: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:
        """The JSON answers to some bodies, in order. Raises Unavailable, ConfError, and ValueError for an
        input that the server refuses."""
        return list(self._threads.map(lambda body: self._post(path, body), bodies))

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        url = f"{self._at.url.rstrip('/')}/{path}"
        if path.startswith("/"):  # next to /v1, and not under it
            url = f"{self._at.url.rstrip('/').removesuffix('/v1')}{path}"
        backoff = Backoff(self._at.tries, FIRST_WAIT_S)
        while True:
            wanted_s, trouble = 0.0, ""
            try:
                response = self._client.post(url, json=body)
            except httpx.HTTPError as e:
                trouble = f"{type(e).__name__}: {e}"
            else:
                status, said = response.status_code, self._at.shown(response.text)
                if status == 200:
                    try:
                        return response.json()
                    except ValueError as e:
                        raise self._error("JSON", f"{said}. Is this the API's address?") from e
                trouble = f"status {status}: {said}"
                if status in INPUT_STATUSES:
                    raise ValueError(f"{self._named} refuses an input: {trouble}")
                if status not in RETRY_STATUSES:
                    raise ConfError(
                        f"{self._named}: {trouble}. Check the key, the url and the model's name there"
                    )
                wanted_s = retry_after_s(response.headers)
            if (wait_s := backoff.next_s(wanted_s)) is None:
                raise Unavailable(f"{self._named}: {trouble}")
            self._sleep(wait_s)

    def _error(self, expected: str, found: object) -> ConfError:
        """For an answer of another form."""
        return ConfError(f"{self._named}: expected {expected}, found {found}")

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        whole = self._model.instructed(texts, role)
        parts = [whole[i : i + BATCH] for i in range(0, len(whole), BATCH)]
        path = "/pooling" if self._model.dialect == "pooling" else "embeddings"
        answers = self._post_all(path, [self._texts(part) for part in parts])
        out: np.ndarray = np.concatenate(
            [self._vectors(a, len(p)) for a, p in zip(answers, parts, strict=True)]
        )
        norms = np.linalg.norm(out, axis=1, keepdims=True)
        if not np.isfinite(out).all() or not norms.all():
            raise self._error("finite vectors with a direction", "NaN, infinity or zeros")
        out /= norms  # (texts, dim) float32, unit rows
        return out

    def _texts(self, texts: Sequence[str]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model.repo, "input": list(texts)}
        if self._model.dialect in ("vllm", "pooling"):
            body["truncate_prompt_tokens"] = self._model.max_tokens
        return body | {"encoding_format": "float"}

    def _vectors(self, answer: Any, texts: int) -> np.ndarray:
        """(texts, dim) float32."""
        try:
            rows = {int(row["index"]): row for row in answer["data"]}
            found = [rows[i].get("embedding", rows[i].get("data")) for i in range(texts)]
            vectors = np.asarray(found, np.float32)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            count = len(answer["data"]) if isinstance(answer, dict) and "data" in answer else "another answer"
            raise self._error(f"{texts} vectors", f"{count} ({type(e).__name__}: {str(e)[:SHOWN]})") from e
        if len(rows) != texts:
            raise self._error(f"{texts} vectors", len(rows))
        if vectors.shape != (texts, self._model.dim):
            dims = "x".join(map(str, vectors.shape[1:]))
            raise self._error(
                f"vectors of dim {self._model.dim}, as its entry says",
                f"{dims}. Correct dim, or the model's name",
            )
        return vectors

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        queries: dict[str, list[int]] = {}  # -> its pairs
        for i, (query, _) in enumerate(pairs):
            queries.setdefault(query, []).append(i)
        parts = [(q, rows[i : i + BATCH]) for q, rows in queries.items() for i in range(0, len(rows), BATCH)]
        bodies = [self._passages(query, [pairs[i][1] for i in rows]) for query, rows in parts]
        out = np.empty(len(pairs), np.float32)  # (pairs,)
        for answer, (_, rows) in zip(self._post_all("rerank", bodies), parts, strict=True):
            out[rows] = self._scores(answer, len(rows))
        if not np.isfinite(out).all():
            raise self._error("finite scores", "NaN or infinity")
        return out

    def _passages(self, query: str, passages: list[str]) -> dict[str, Any]:
        query = self._model.instructed([query], "query")[0]
        passages = self._model.instructed(passages, "passage")
        if self._model.dialect == "tei":
            return {"query": query, "texts": passages, "raw_scores": False, "truncate": True}
        body = {"model": self._model.repo, "query": query, "documents": passages, "top_n": len(passages)}
        if self._model.dialect == "jina":
            body["return_documents"] = False
        if self._model.dialect == "vllm":
            body["truncate_prompt_tokens"] = self._model.max_tokens
        return body

    def _scores(self, answer: Any, passages: int) -> np.ndarray:
        """(passages,) float32."""
        tei = self._model.dialect == "tei"
        try:
            rows = answer if tei else answer["results"]
            found = {int(r["index"]): float(r["score" if tei else "relevance_score"]) for r in rows}
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise self._error(
                f"an answer of dialect {self._model.dialect}",
                f"{type(e).__name__}: {e}: {str(answer)[:SHOWN]}",
            ) from e
        if sorted(found) != list(range(passages)) or len(rows) != passages:
            raise self._error(f"{passages} scores, one for each passage", len(rows))
        return np.array([found[i] for i in range(passages)], np.float32)


def require_served(name: str, at: EndpointAddress, key_name: str) -> dict[str, Any]:
    """What a server lists about a model; {} where it does not list it and answers a chat. Raises Unavailable
    where nothing answers at the address, ConfError for a key that is refused and for a model that is not
    served. `key_name`: the environment variable of the key, for messages."""
    with _client(at) as client:
        served = _listed(_send(client, at, "GET", "models", key_name, LISTING_TIMEOUT_S))
        if name in served:
            return served[name]
        chat = {"model": name, "messages": [{"role": "user", "content": "ready"}], "max_tokens": 1}
        tried = _send(client, at, "POST", "chat/completions", key_name, at.timeout_s, chat)
    if tried.status_code in (400, 404, 405, 422):
        hint = did_you_mean(name, served) if served else "is this the API's address, up to and with /v1?"
        raise ConfError(
            f"{at.url}: expected the model {name!r} to be served there, found status "
            f"{tried.status_code}: {at.shown(tried.text)}; {hint}"
        )
    return {}


def describe(kind: str, name: str, at: EndpointAddress, dialect: str, key_name: str) -> dict[str, Any]:
    """The fields of models.yaml for a served model, after one request to it. Raises as `require_served`, and
    ConfError for a reranker without a dialect."""
    if kind == "generator":
        said = require_served(name, at, key_name)
        found = "vllm" if said.get("owned_by") == "vllm" else "openai"
        length = said.get("max_model_len")
        return {
            "loader": "openai", "dialect": dialect or found,
            "max_model_len": length if isinstance(length, int) else 8192,
        }  # fmt: skip
    if kind == "embedder":
        with _client(at) as client:
            body = {"model": name, "input": ["ready"], "encoding_format": "float"}
            answer = _send(client, at, "POST", "embeddings", key_name, at.timeout_s, body)
        return {"loader": "embeddings", "dialect": dialect or "openai", "dim": _dim(answer, name, at)}
    if kind == "reranker":
        if not dialect:
            raise ConfError(f"--dialect: a reranker needs one of {', '.join(DIALECTS['rerank'])}")
        model = Model(name, "reranker", "rerank", name, "", "", "", dialect=dialect)
        RemoteModel(model, at).score([("ready", "ready"), ("ready", "not")])
        return {"loader": "rerank", "dialect": dialect}
    raise ConfError(f"--kind {kind}: a server has embedders, rerankers and generators")


def _dim(answer: httpx.Response, name: str, at: EndpointAddress) -> int:
    try:
        return len(answer.json()["data"][0]["embedding"])
    except (ValueError, KeyError, IndexError, TypeError) as e:
        raise ConfError(
            f"{at.url}: expected an embedding of {name!r}, found status {answer.status_code}: "
            f"{at.shown(answer.text)}. Is this the API's address, up to and with /v1?"
        ) from e


def _client(at: EndpointAddress) -> httpx.Client:
    return httpx.Client(headers=at.headers, follow_redirects=False)


def _send(
    client: httpx.Client,
    at: EndpointAddress,
    method: str,
    path: str,
    key_name: str,
    timeout_s: float,
    body: dict[str, Any] | None = None,
) -> httpx.Response:
    """One request. Raises Unavailable where nothing answers, ConfError for a key that is refused."""
    try:
        response = client.request(method, f"{at.url.rstrip('/')}/{path}", json=body, timeout=timeout_s)
    except httpx.HTTPError as e:
        raise Unavailable(
            f"{at.url}: nothing answers there: {type(e).__name__}. Start the server, or correct the address"
        ) from e
    if response.status_code in (401, 403):
        sent = "the key was refused" if at.key else "it wants a key, and none was sent"
        raise ConfError(
            f"{at.url}: {sent} (status {response.status_code}). Put the key in the environment variable "
            f"{key_name}"
        )
    return response


def _listed(response: httpx.Response) -> dict[str, dict[str, Any]]:
    """What a server lists, by name; {} where it lists nothing that can be read."""
    try:
        rows = response.json()["data"] if response.status_code == 200 else []
        return {str(row["id"]): dict(row) for row in rows}
    except (ValueError, KeyError, TypeError):
        return {}
