"""Adapter from CRAG's own evaluation loop to an endpoint: `get_batch_size` and `batch_generate_answer`.

In the harness's `models/user_config.py`:

    from functools import partial
    from raypipe.serving.crag_harness import EndpointModel
    UserModel = partial(EndpointModel, "http://127.0.0.1:8000", key="...")

The module depends on HTTP and the shape of the loop's batches, not on the recipe that answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from raypipe.core.errors import DataError, Unavailable
from raypipe.core.records import IDK
from raypipe.models.hosts import masked, shown

BATCH_SIZE = 8  # questions per call of the loop, as in the official baselines


class EndpointModel:
    """A model as the loop expects it. Each question gets `deadline_s` seconds; the contest gave 30."""

    def __init__(self, url: str, key: str = "", deadline_s: float = 30.0) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout_s = deadline_s * BATCH_SIZE  # the endpoint answers a batch a few questions at a time
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)
        self._deadline_s, self._key = deadline_s, key

    def get_batch_size(self) -> int:
        """Returns the number of questions per call of `batch_generate_answer`, 1 to 16."""
        return BATCH_SIZE

    def batch_generate_answer(self, batch: Mapping[str, Sequence[Any]]) -> list[str]:
        """Answers each question of a batch; a failed question gets "i don't know".

        `batch` has lists of equal length, of which query, query_time and search_results are read. Raises
        DataError if the endpoint refuses the batch, and Unavailable if it is busy, down or failing."""
        queries = []
        rows = zip(batch["query"], batch["query_time"], batch["search_results"], strict=True)
        for query, time, pages in rows:
            documents = [{field: page.get(field) for field in _PAGE} for page in pages]
            fields = {"query": query, "time": time, "deadline_s": self._deadline_s, "documents": documents}
            queries.append(fields)
        try:
            response = self._client.post("/v1/answer:batch", json={"queries": queries})
        except httpx.TransportError as e:
            raise Unavailable(f"the endpoint at {self._client.base_url} cannot be reached: {e}") from e
        if response.is_client_error and response.status_code != httpx.codes.TOO_MANY_REQUESTS:
            raise DataError(f"the endpoint refuses the batch: {masked(response.text, self._key)}")
        if not response.is_success:
            detail = shown(response.text, self._key)
            raise Unavailable(f"the endpoint answered {response.status_code}: {detail}")
        return [answer.get("answer") or IDK for answer in response.json()["answers"]]


_PAGE = ("page_name", "page_url", "page_snippet", "page_result", "page_last_modified")
