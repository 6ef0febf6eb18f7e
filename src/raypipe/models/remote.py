"""Embedders and rerankers behind an address.

Each answer must have one finite vector or score per input, and vectors of the dim of the models.yaml entry.
Any other answer raises ConfError, since all further answers would be wrong, too. A server that is down or
overloaded raises Unavailable. Inputs that are refused together are sent again in halves; an input that is
refused by itself raises ValueError.
"""

from __future__ import annotations

import asyncio
import base64
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from raypipe.core.bounded_rows import batches
from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.progress import IN_HAND
from raypipe.core.protocols import Model, Role
from raypipe.models.hosts import EndpointAddress, shown
from raypipe.models.server import ServerClient, Trouble

T = TypeVar("T")

BATCH = 64  # texts, or passages of one query, per request: accepted by many servers; halved if refused


class RemoteModel:
    """An embedder or a reranker behind an address. Vectors come from `/embeddings`, or with dialect pooling
    from vLLM's `/pooling`; scores from `/rerank`, in the dialects of vLLM, Jina, Cohere and TEI."""

    def __init__(
        self, model: Model, at: EndpointAddress, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Starts the thread that sends requests."""
        self._model, self._named = model, f"model {model.name!r} at {at.url}"
        self.server = ServerClient(at, sleep)
        self._most = BATCH  # most inputs of a request
        self._form = {"encoding_format": "float"}
        # Callers are threads, but connections belong to one event loop.
        self._loop = loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="requests", daemon=True).start()
        weakref.finalize(self, loop.call_soon_threadsafe, loop.stop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _answers(
        self, path: str, inputs: Sequence[T], body: Callable[[Sequence[T]], dict[str, Any]]
    ) -> list[tuple[int, Any]]:
        """Sends inputs. Returns the JSON answers in order, each with the number of its inputs. Raises
        Unavailable if the server is down or the account is unpaid, and ValueError if the server refuses an
        input by itself. Raises ConfError for any other trouble."""
        if len(inputs) <= self._most:
            got = await self.server.send("POST", path, lambda tree: tree, json=body(inputs))
            if not isinstance(got, Trouble):
                IN_HAND.add(len(inputs))
                return [(len(inputs), got)]
            self._raise_unless_refused(got)
            if self._form and "encoding_format" in str(got.error):
                self._form = {}  # a server that lacks the option sends its default format
                return await self._answers(path, inputs, body)
            if len(inputs) == 1:
                raise ValueError(f"{self._named} refuses an input: {got.detail}")
            half = (len(inputs) + 1) // 2
            answers = await self._answers(path, inputs[:half], body)
            answers += await self._answers(path, inputs[half:], body)
            self._most = min(self._most, half)
            return answers
        parts = await asyncio.gather(*(self._answers(path, p, body) for p in batches(inputs, self._most)))
        return [answer for part in parts for answer in part]

    def _raise_unless_refused(self, trouble: Trouble) -> None:
        if trouble.reason == "refused" and not trouble.transient:
            return
        message = f"{self._named}: {trouble.detail}"
        if trouble.again or trouble.reason in ("unpaid", "refused"):
            if trouble.reason == "not_the_protocol":
                raise ConfError(message)
            raise Unavailable(message)
        if trouble.reason == "unsendable":
            raise ValueError(message)
        raise ConfError(f"{message}. Check the key, the url and the model's name there")

    def _error(self, expected: str, found: object) -> ConfError:
        """Builds the error for an answer that is not as expected."""
        return ConfError(f"{self._named}: expected {expected}, found {found}")

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        whole = self._model.instructed(texts, role)
        path = "/pooling" if self._model.dialect == "pooling" else "embeddings"
        answers = self._run(self._answers(path, whole, self._texts))
        out: np.ndarray = np.concatenate([self._vectors(tree, n) for n, tree in answers])
        norms = np.linalg.norm(out, axis=1, keepdims=True)
        if not np.isfinite(out).all() or not norms.all():
            raise self._error("finite vectors with a direction", "NaN, infinity or zeros")
        out /= norms  # (texts, dim) float32, unit rows
        return out

    def _texts(self, texts: Sequence[str]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model.repo, "input": list(texts)}
        if self._model.dialect in ("vllm", "pooling"):
            body["truncate_prompt_tokens"] = self._model.max_tokens
        return body | self._form

    def _vectors(self, answer: Any, texts: int) -> np.ndarray:
        """Parses vectors: (texts, dim) float32. Raises ConfError if the answer has another form or dim."""
        try:
            rows = answer["data"]
            if all(row.get("index") is None for row in rows):  # no index: rows are in the order of the texts
                rows = [{**row, "index": i} for i, row in enumerate(rows)]
            found = self._in_order(rows, texts, lambda row: row.get("embedding", row.get("data")))
            vectors = np.asarray([_numbers(v) for v in found], np.float32)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            count = len(answer["data"]) if isinstance(answer, dict) and "data" in answer else "another answer"
            raise self._error(f"{texts} vectors", f"{count} ({self._why(e)})") from e
        if vectors.shape != (texts, self._model.dim):
            dims = "x".join(map(str, vectors.shape[1:]))
            expected = f"vectors of dim {self._model.dim}, as its entry says"
            raise self._error(expected, f"{dims}. Correct dim, or the model's name")
        return vectors

    def _why(self, e: Exception) -> str:
        return f"{type(e).__name__}: {shown(str(e), self.server.at.key)}"

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        queries: dict[str, list[int]] = {}  # -> its pairs
        for i, (query, _) in enumerate(pairs):
            queries.setdefault(query, []).append(i)
        out = np.empty(len(pairs), np.float32)  # (pairs,)

        async def all_scores() -> None:
            await asyncio.gather(*(of(query, rows) for query, rows in queries.items()))

        async def of(query: str, rows: list[int]) -> None:
            passages = [pairs[i][1] for i in rows]
            answers = await self._answers("rerank", passages, lambda some: self._passages(query, list(some)))
            out[rows] = np.concatenate([self._scores(tree, n) for n, tree in answers])

        self._run(all_scores())
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
        """Parses scores: (passages,) float32. Raises ConfError if the answer has another form."""
        tei = self._model.dialect == "tei"
        try:
            rows = answer if tei else answer.get("results", answer.get("data"))
            score = "score" if tei else "relevance_score"
            found = self._in_order(rows, passages, lambda row: float(row[score]))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            expected = f"{passages} scores in an answer of dialect {self._model.dialect}"
            raise self._error(expected, f"another ({self._why(e)})") from e
        return np.array(found, np.float32)

    def _in_order(self, rows: Sequence[Any], inputs: int, value: Callable[[Any], T]) -> list[T]:
        """Orders the values of rows by index; some servers leave out index 0. Raises ConfError unless each
        input has exactly one row."""
        found = {int(row.get("index", 0)): value(row) for row in rows}
        if sorted(found) != list(range(inputs)) or len(rows) != inputs:
            kind = "vectors" if self._model.dim else "scores"
            raise self._error(f"{inputs} {kind}, one for each input", len(rows))
        return [found[i] for i in range(inputs)]


def _numbers(vector: Any) -> Any:
    """Returns a vector's numbers. Some servers send base64 bytes, or a list around the vector."""
    if isinstance(vector, str):
        return np.frombuffer(base64.b64decode(vector), "<f4")
    return vector[0] if len(vector) == 1 and isinstance(vector[0], list) else vector
