"""The OpenAI chat protocol for the endpoint's questions: existing chat clients work unchanged.

The question is the last user message. Earlier user and assistant messages with text become its turns: the
newest 20, and the first 2,000 characters of each. All other messages are ignored. Sampling fields have no
effect, since a recipe has its own prompts and sampling. Fields that would change the kind of reply (tools,
several choices, a response format) are refused, except with a value that changes nothing. A response has the
evidence twice: in `annotations`, as url_citation, and in `raypipe`, with the exact characters of each quote.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from raypipe.core.records import ABSTAINED, RANKED
from raypipe.readers.conversation import text_of, turns_of
from raypipe.recipes.recipe import Recipe
from raypipe.serving.http.errors import RequestRefused, chat_error
from raypipe.serving.http.replies import PAGE, QUOTE, WEIGHTS, AnswerFields, AnswerResponse, Shape, says
from raypipe.serving.http.requests import QueryBody, QueryOptions, StrictBody, TurnBody, mistake
from raypipe.serving.http.stream import KEEP_ALIVE_S, Event, encode_event
from raypipe.text.turns import TURN_CHARS

NO_EFFECT = "Accepted without effect: prompts and sampling are the recipe's."

_FIRST_MISTAKE = Field(fail_fast=True)
"""Ends the check of an unbounded list at the first mistake: a check for all mistakes took 50 s for 32 MB."""
_NOT_KEPT = AfterValidator(lambda value: None)  # drops the value: millions of values would take gigabytes


class TextPart(BaseModel):
    """A text part of a message. Unknown fields are ignored, such as marks for a cache."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    type: Literal["text"] = says("Always text.", "text")
    text: str = says("The text.", "who wrote the first program?", max_length=100_000)


class ChatTurn(BaseModel):
    """A message. Unknown fields are ignored: clients send replies back with all their fields."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = says(
        "Who speaks; the last message of the user is the question.", "user"
    )
    content: str | Annotated[list[TextPart], _FIRST_MISTAKE] | None = says(
        "The text of the message, or its parts.", "who wrote the first program?", default=None
    )

    def joined_text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class TextFormat(StrictBody):
    """The form of a reply."""

    type: Literal["text"] = says("Always text.", "text")


class StreamOptions(StrictBody):
    """Optional parts of a stream."""

    include_usage: bool = says("Send the token counts in a last chunk.", True, default=False)
    include_obfuscation: bool = says(NO_EFFECT, False, default=False)


def _without_effect(example: Any, **bounds: Any) -> Any:
    return says(NO_EFFECT, example, default=None, **bounds)


class ChatBody(StrictBody):
    """The body of /v1/chat/completions."""

    NULL_IS_ABSENT: ClassVar[bool] = True

    model: str = says("An id of /v1/models.", "raypipe", max_length=200)
    messages: list[ChatTurn] = Field(
        min_length=1,
        max_length=1000,
        description="The chat. Its last user message is the question, and earlier ones of user and "
        "assistant are its turns; all else is ignored.",
    )
    stream: bool = says("Send the answer as server-sent events.", False, default=False)
    stream_options: StreamOptions | None = Field(default=None, description="What a stream also carries.")
    n: Literal[1] | None = says("Choices: one.", 1, default=None)
    raypipe: QueryOptions = Field(default=QueryOptions(), description="Options of the question.")
    temperature: float | None = _without_effect(0.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = _without_effect(1.0, ge=0, le=1, allow_inf_nan=False)
    max_tokens: int | None = _without_effect(75, ge=1)
    max_completion_tokens: int | None = _without_effect(75, ge=1)
    frequency_penalty: float | None = _without_effect(0.0, ge=-2, le=2, allow_inf_nan=False)
    presence_penalty: float | None = _without_effect(0.0, ge=-2, le=2, allow_inf_nan=False)
    seed: int | None = _without_effect(0)
    top_k: int | None = _without_effect(0)
    min_p: float | None = _without_effect(0.0)
    repetition_penalty: float | None = _without_effect(1.0)
    reasoning_effort: str | None = _without_effect("low")
    verbosity: str | None = _without_effect("low")
    stop: Annotated[str | Annotated[list[str], _FIRST_MISTAKE] | None, _NOT_KEPT] = _without_effect("\n")
    user: str | None = _without_effect("someone")
    # objects of any form, so no error message repeats the client's keys
    metadata: Annotated[dict[str, Any] | None, _NOT_KEPT] = _without_effect({})
    chat_template_kwargs: Annotated[dict[str, Any] | None, _NOT_KEPT] = _without_effect({})
    prediction: Annotated[dict[str, Any] | None, _NOT_KEPT] = _without_effect({})
    logit_bias: Annotated[dict[str, Any] | None, _NOT_KEPT] = _without_effect({})
    store: bool | None = _without_effect(False)
    service_tier: str | None = _without_effect("auto")
    safety_identifier: str | None = _without_effect("someone")
    prompt_cache_key: str | None = _without_effect("")
    prompt_cache_retention: str | None = _without_effect("24h")
    tool_choice: Literal["none", "auto"] | None = says("No tool is called.", "none", default=None)
    tools: Annotated[list[Any] | None, AfterValidator(bool)] = says(
        "Tools; only with tool_choice none.", [], default=None
    )
    parallel_tool_calls: bool | None = _without_effect(False)
    function_call: Literal["none", "auto"] | None = says("No function is called.", "none", default=None)
    functions: list[Any] | None = says("None.", [], default=None, max_length=0)
    response_format: TextFormat | None = Field(default=None, description="The form of the reply: text.")
    modalities: list[Literal["text"]] | None = says("The form of the reply.", ["text"], default=None)
    logprobs: Literal[False] | None = says("Probabilities of tokens are not sent.", False, default=None)
    top_logprobs: Literal[0] | None = says("Probabilities of tokens are not sent.", 0, default=None)

    @field_validator("messages", mode="before")
    @classmethod
    def _others_are_not_read(cls, turns: Any) -> Any:
        """Drops unused content, such as images and tools. Keeps the question and the cut texts before it."""
        if not isinstance(turns, list):
            return turns
        roles = [turn.get("role") if isinstance(turn, dict) else None for turn in turns]
        last = max((i for i, role in enumerate(roles) if role == "user"), default=-1)
        return [
            {"role": role, "content": _kept(turn.get("content") if i < last else None)}
            if isinstance(role, str) and i != last
            else turn
            for i, (turn, role) in enumerate(zip(turns, roles, strict=True))
        ]

    @model_validator(mode="after")
    def _no_tool_is_wanted(self) -> ChatBody:
        if self.tools and self.tool_choice != "none":
            raise mistake("tools: expected none, or tool_choice none: a recipe calls no tools of a client")
        return self

    def asked(self) -> QueryBody:
        """Returns the question with its turns. Raises RequestRefused unless it has 1 to 10,000 characters."""
        last = max((i for i, turn in enumerate(self.messages) if turn.role == "user"), default=-1)
        text = self.messages[last].joined_text() if last >= 0 else ""
        if not text.strip() or len(text) > 10_000:
            expected = (
                "a question of at most 10000 characters" if text.strip() else "a user message with text"
            )
            raise RequestRefused(HTTPStatus.BAD_REQUEST, f"Invalid request: expected {expected}.")
        before = [{"role": m.role, "text": m.joined_text()} for m in self.messages[:last]]
        turns = [TurnBody(role=t.role, text=t.text) for t in turns_of(before, "messages")]
        return QueryBody(query=text, turns=turns, **dict(self.raypipe))


def _kept(content: Any) -> str | None:
    """Returns the text of an earlier message, cut to TURN_CHARS; None for other content."""
    text = text_of(content)
    return text.strip()[:TURN_CHARS] if isinstance(text, str) else None


class UrlCitation(Shape):
    """A source that supports the answer."""

    url: str = says("Url that cites the source.", PAGE)
    title: str = says("The beginning of the quote.", QUOTE)
    start_index: int = says("Always 0: it is about the whole answer.", 0)
    end_index: int = says("Length of the answer.", 12)


class Annotation(Shape):
    """An annotation of a message."""

    type: Literal["url_citation"] = says("Always url_citation.", "url_citation")
    url_citation: UrlCitation = Field(description="The source.")


class ChatMessage(Shape):
    """The message that answers."""

    role: Literal["assistant"] = says("Always assistant.", "assistant")
    content: str | None = says("The answer; null if answering failed.", "ada lovelace")
    refusal: str | None = says("Why there is no answer; null if there is one.", None)
    annotations: list[Annotation] = Field(description="The evidence that has a url.")


class ChatChoice(Shape):
    """The only choice of a reply."""

    index: int = says("Always 0.", 0)
    message: ChatMessage = Field(description="The message.")
    logprobs: None = says("Always null.", None)
    finish_reason: Literal["stop"] = says("Always stop.", "stop")


class ChatUsage(Shape):
    """Tokens of every chat that the recipe made."""

    prompt_tokens: int = says("Tokens of prompts.", 0)
    completion_tokens: int = says("Tokens of replies.", 0)
    total_tokens: int = says("Their sum.", 0)


class ChatCompletion(Shape):
    """The body of /v1/chat/completions' response."""

    id: str = says("Id of the reply, with the request's.", "chatcmpl-0f52a8d1")
    object: Literal["chat.completion"] = says("Always chat.completion.", "chat.completion")
    created: int = says("When it was answered, in seconds since the epoch.", 1709709511)
    model: str = says("The model that the request named.", "raypipe")
    choices: list[ChatChoice] = Field(description="One choice.")
    usage: ChatUsage = Field(description="Tokens of language models.")
    raypipe: AnswerFields = Field(description="Fields of /v1/answer that the protocol has no place for.")


class ChatErrorFields(Shape):
    """The error, in the protocol's words."""

    message: str = says("What is wrong, and where.", "Invalid request. n: expected 1")
    type: str = says("Kind of the error.", "invalid_request_error")
    param: None = says("Always null: the message names the field.", None)
    code: str = says("The HTTP status.", "400")


class ChatError(Shape):
    """An error in the chat protocol's form."""

    error: ChatErrorFields = Field(description="The error.")


class ChatModel(Shape):
    """A model that a chat may name: the recipe."""

    id: str = says("`raypipe`, or the recipe's name.", "raypipe")
    object: Literal["model"] = says("Always model.", "model")
    created: int = says("Always 0: a recipe has no date.", 0)
    owned_by: str = says("Always raypipe.", "raypipe")
    recipe: str = says("Digest of the recipe.", "5c0f2c1e7d3a9b48")
    models: dict[str, str] = WEIGHTS


class ModelList(Shape):
    """The models that a chat may name."""

    object: Literal["list"] = says("Always list.", "list")
    data: list[ChatModel] = Field(description="The models.")


def completion(id: str, model: str, answer: AnswerResponse) -> dict[str, Any]:
    """Builds the body of a response without streaming: a `ChatCompletion`."""
    message = {"role": "assistant", **_content(answer), "annotations": url_citations(answer)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    head = _head(id, model, "chat.completion")
    return {**head, "choices": [choice], "usage": usage(answer), "raypipe": answer}


async def chunks(
    id: str, model: str, counts: bool, events: AsyncIterator[Event | None]
) -> AsyncIterator[bytes]:
    """Yields the bytes of a streamed answer, without drafts: a client would show a draft as the answer."""
    head = _head(id, model, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return encode_event({**head, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": ""})
    sent = time.monotonic()
    async for event in events:
        if event is None:
            yield KEEPALIVE_COMMENT
        elif event[0] in ("stage", "draft"):
            if (now := time.monotonic()) - sent >= KEEP_ALIVE_S:
                sent = now
                yield KEEPALIVE_COMMENT
        elif event[0] == "error":
            yield encode_event(chat_error(event[1]["status"], event[1]["detail"]))
        else:
            answer: AnswerResponse = event[1]
            yield chunk({**_content(answer), "annotations": url_citations(answer)})
            extension = answer.model_dump(include=set(AnswerFields.model_fields), exclude_unset=True)
            yield chunk({}, "stop", raypipe=extension)
            if counts:
                yield encode_event({**head, "choices": [], "usage": usage(answer)})
    yield format_sse_event(data_str="[DONE]")


def url_citations(answer: AnswerResponse) -> list[dict[str, Any]]:
    """Lists the evidence that has a url, as annotations of the whole answer; nothing for an abstention."""
    whole = {"start_index": 0, "end_index": len(answer.answer or "")}
    quotes = answer.citations if answer.outcome != ABSTAINED else []  # no quote supports an "i don't know"
    cited = [{"url": c.url, "title": c.quote[:100]} for c in quotes if c.url]
    return [{"type": "url_citation", "url_citation": {**c, **whole}} for c in cited]


def usage(answer: AnswerResponse) -> dict[str, int]:
    prompt, generated = answer.usage["prompt_tokens"], answer.usage["generated_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _content(answer: AnswerResponse) -> dict[str, Any]:
    """Returns the message's content and refusal. One of them is None. A refusal says that answering failed or
    that the recipe only ranks."""
    if answer.outcome == RANKED:
        return {"content": None, "refusal": "This recipe ranks and does not answer: POST /v1/retrieve."}
    if answer.answer is None:
        return {"content": None, "refusal": "Answering failed: see raypipe.outcome."}
    return {"content": answer.answer, "refusal": None}


def _head(id: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": int(time.time()), "model": model}


def model_names(recipe: Recipe) -> tuple[str, ...]:
    """Returns the names that a chat may use."""
    return "raypipe", recipe.name


def models(recipe: Recipe) -> dict[str, ChatModel]:
    """Maps each name that a chat may use to its entry."""
    weights = {m.name: m.weights for m in recipe.models()}
    whole = ChatModel(
        id="raypipe", object="model", created=0, owned_by="raypipe", recipe=recipe.digest(), models=weights
    )
    return {id: whole.model_copy(update={"id": id}) for id in model_names(recipe)}


def unknown_model() -> RequestRefused:
    return RequestRefused(HTTPStatus.NOT_FOUND, "Unknown model: GET /v1/models lists the names.")
