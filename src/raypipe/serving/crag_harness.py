"""CRAG's own evaluation loop over an endpoint: `get_batch_size` and `batch_generate_answer`.

In the harness's `models/user_config.py`:

    from functools import partial
    from raypipe.harness import Participant
    UserModel = partial(Participant, "http://127.0.0.1:8000", key="...")

Knows HTTP and the shape of the loop's batches; nothing of what answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from raypipe.core.errors import DataError, Unavailable
from raypipe.core.records import IDK

BATCH = 8  # questions in one call of the loop, as the official baselines have it


class Participant:
    """A model as the loop sees it. `deadline_s` is each question's: the contest gave 30."""

    def __init__(
        self, url: str, key: str = "", deadline_s: float = 30.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # A batch is answered some questions at a time.
        patience_s = deadline_s * BATCH
        self._client = httpx.Client(base_url=url, headers=headers, timeout=patience_s, transport=transport)
        self._deadline_s = deadline_s

    def get_batch_size(self) -> int:
        """Questions that `batch_generate_answer` is handed at once, 1 to 16."""
        return BATCH

    def batch_generate_answer(self, batch: Mapping[str, Sequence[Any]]) -> list[str]:
        """An answer for each question, "i don't know" for one that could not be done.

        `batch` has interaction_id, query, search_results and query_time, all in the same order. Raises
        DataError for a batch that the endpoint refuses, Unavailable where it cannot be asked.
        """
        rows = zip(batch["query"], batch["query_time"], batch["search_results"], strict=True)
        queries = [
            {
                "query": query,
                "time": asked_at,
                "documents": [{f: page.get(f) for f in _PAGE} for page in pages],
                "deadline_s": self._deadline_s,
            }
            for query, asked_at, pages in rows
        ]
        try:
            sent = self._client.post("/v1/answer:batch", json={"queries": queries})
        except httpx.TransportError as e:
            raise Unavailable(f"the endpoint at {self._client.base_url} cannot be asked: {e}") from e
        if sent.is_client_error and sent.status_code != httpx.codes.TOO_MANY_REQUESTS:
            raise DataError(f"the endpoint refuses the batch: {sent.text}")
        if not sent.is_success:
            raise Unavailable(f"the endpoint answered {sent.status_code}: {sent.text}")
        return [said.get("answer") or IDK for said in sent.json()["answers"]]


_PAGE = ("page_name", "page_url", "page_snippet", "page_result", "page_last_modified")
