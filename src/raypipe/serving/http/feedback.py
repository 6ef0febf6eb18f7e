"""POST /v1/feedback: what a user says of a captured answer.

{"answer_id": "67d2f1c0...", "verdict": "wrong", "text": "ada lovelace"}
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator

from raypipe.serving.access import RequestLimits
from raypipe.serving.capture import Capture, UnknownAnswer
from raypipe.serving.http.admission import Admission
from raypipe.serving.http.authorization import who_asks
from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.http.limits import read_body
from raypipe.serving.http.reply_types import FeedbackResponse
from raypipe.serving.http.validation import StrictBody, mistake, parse_body
from raypipe.serving.redaction import RedactionFailed


class FeedbackBody(StrictBody):
    """What a user says of an answer: a verdict, the right answer, or both."""

    answer_id: str = Field(
        max_length=100,
        description="The answer, as its reply names it.",
        examples=["67d2f1c09b1e5a77c0d4a1f2e3b4c5d6e7f8"],
    )
    verdict: Literal["right", "wrong"] | None = Field(
        default=None, description="Whether the answer is right. Null: not said.", examples=["wrong"]
    )
    text: str | None = Field(
        default=None,
        max_length=10_000,
        pattern=r"\S",
        description="The right answer, in the user's words. Null: not given.",
        examples=["ada lovelace"],
    )

    @model_validator(mode="after")
    def _says_something(self) -> FeedbackBody:
        if self.verdict is None and self.text is None:
            raise mistake("expected a verdict, a text, or both")
        return self


class FeedbackRoute:
    """The function of the route."""

    def __init__(self, limits: RequestLimits, capture: Capture | None, admission: Admission) -> None:
        self._limits, self._capture, self._admission = limits, capture, admission

    async def post(self, request: Request) -> Response:
        tenant = who_asks(request)
        await self._admission.admit(tenant)
        body = parse_body(FeedbackBody, await read_body(request, self._limits), self._limits)
        if self._capture is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "This endpoint captures no answers.")
        try:
            await self._capture.feedback(tenant.name, body.answer_id, body.verdict, body.text)
        except UnknownAnswer:
            detail = "Unknown answer: expected the answer_id of a reply to this key that is still kept."
            raise RequestRefused(HTTPStatus.NOT_FOUND, detail) from None
        except RedactionFailed as e:
            request.state.log_fields["redaction"] = str(e)
            detail = "The feedback cannot be redacted, so it is not kept. The endpoint's log says why."
            raise RequestRefused(HTTPStatus.INTERNAL_SERVER_ERROR, detail) from None
        kept: FeedbackResponse = {"answer_id": body.answer_id, "kept": True}
        return JSONResponse(kept)
