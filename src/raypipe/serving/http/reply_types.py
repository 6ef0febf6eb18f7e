"""What the routes reply, as types: each field with what it means and a value that it may have.

The OpenAPI document is made of them. Filled in `stream` and `openai`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12


def says(description: str, example: Any, **more: Any) -> Any:
    """What the OpenAPI document says of a field, with one value that it may have; `more` is pydantic's."""
    return Field(description=description, examples=[example], **more)


SPAN = says("[start, end) in the characters of the source's parsed text.", [0, 39])
SCORES = says("Score of the passage by each ranker that ranked it.", {"recall": 0.86, "rerank": 0.97})
URL = says(
    "Url that cites the source; of a file of a folder its path, with #page=N for a page; null: none does.",
    "https://en.example.org/ada",
)
TITLE = says("Title of the document; with one that is a file of a folder.", "Annual report")
PAGE = says("Its page or pages, as printed; null: the document has none.", "p. 7")
SECTION = says("Heading of its section; null: none.", "Method")
SOURCE = "91774d62e0b14c6f"
RELEASE = says("Id of the live release; null: a named recipe answers.", "r0001-91774d62")
WEIGHTS = says("Name of each model -> identity of its weights.", {"all-MiniLM-L6-v2": "sha256:4740876d"})
CHUNK = f"{SOURCE}:0-39"
HOLDING = says("The best-ranked passage that holds the quote whole; null: none does.", CHUNK)
BEFORE = says("Up to 300 characters of the source before the quote; with `context`.", "")
AFTER = says("Up to 300 characters of the source after the quote; with `context`.", " It ...")
QUOTE = "Ada Lovelace wrote the first program."


class ScoredPassage(TypedDict):
    """A ranked passage."""

    chunk: Annotated[str, says("Id of the passage: source:start-end.", CHUNK)]
    url: Annotated[str | None, URL]
    span: Annotated[list[int], SPAN]
    scores: Annotated[dict[str, float], SCORES]
    title: NotRequired[Annotated[str, TITLE]]
    page: NotRequired[Annotated[str | None, PAGE]]
    section: NotRequired[Annotated[str | None, SECTION]]
    text: NotRequired[Annotated[str, says("The passage; with `passages` and in /v1/retrieve.", QUOTE)]]


class CitedQuote(TypedDict):
    """A quote that supports the answer: exactly the source's parsed text at `span`."""

    source: Annotated[str, says("Id of the source.", SOURCE)]
    chunk: Annotated[str | None, HOLDING]
    url: Annotated[str | None, URL]
    quote: Annotated[str, says("The text of the source at `span`.", QUOTE)]
    span: Annotated[list[int], SPAN]
    scores: Annotated[dict[str, float], SCORES]
    title: NotRequired[Annotated[str, TITLE]]
    page: NotRequired[Annotated[str | None, PAGE]]
    section: NotRequired[Annotated[str | None, SECTION]]
    before: NotRequired[Annotated[str, BEFORE]]
    after: NotRequired[Annotated[str, AFTER]]


class Versions(TypedDict):
    """Which release, recipe and models answered."""

    release: Annotated[str | None, RELEASE]
    recipe: Annotated[str, says("Digest of the recipe.", "5c0f2c1e7d3a9b48")]
    models: Annotated[dict[str, str], WEIGHTS]


ID = says("Id of the question: the stored one's, or a digest of its text.", "0f52a8d1")
TEXT = says("The question.", "who wrote the first program?")
ANSWER_ID = says(
    "Names the answer in /v1/feedback; with one that is captured.", "67d2f1c09b1e5a77c0d4a1f2e3b4c5d6e7f8"
)
DEGRADED = says("Stages that were omitted: out of time, or their model is unavailable.", [])
TIMINGS = says("Wall time of each stage, and in total, in milliseconds.", {"dense": 12.1, "total": 96.4})
USAGE = says(
    "Texts embedded, pairs scored, chats answered and their tokens, for this request.",
    {"embedded": 1, "scored": 20, "chats": 0, "prompt_tokens": 0, "cached_tokens": 0, "generated_tokens": 0},
)


REPLIES = says("What each step replied; with `replies`.", {"extract": {"text": "ada lovelace"}})
CHATS = [[{"role": "user", "content": "..."}]]
PROMPTS = says("Every chat that a language model got; with `prompts`.", CHATS)
TOO_LARGE = {"step": "parse", "reason": "too_large", "detail": "...", "transient": False}
FAULTS = says("What went wrong with its pages and stages; with `faults`.", [TOO_LARGE])
OUTCOME = says(
    "answered, abstained (i don't know), false_premise (invalid question), ranked or fault.", "answered"
)
ANSWER = says("The answer; null where it is fault or ranked, never empty.", "ada lovelace")
TEXTS = Field(description="The ranking with its texts; with `passages`.")
CITATIONS = "The evidence of the answer, best first; of an abstention the closest that was found."
OTHERS = "Values that other sources state for the answer, newest first; with an answer where some do."


class ReplyFields(TypedDict):
    """What every reply to a question has."""

    degraded: Annotated[list[str], DEGRADED]
    timings_ms: Annotated[dict[str, float], TIMINGS]
    versions: Annotated[Versions, Field(description="What answered.")]


class QuestionFields(ReplyFields):
    """The question of a reply, and what it cost."""

    id: Annotated[str, ID]
    query: Annotated[str, TEXT]
    usage: Annotated[dict[str, int], USAGE]


class AnswerFields(ReplyFields):
    """What is known of an answer."""

    outcome: Annotated[str, OUTCOME]
    confidence: Annotated[float | None, says("0 to 1, of the answer; null: no step states one.", 0.91)]
    citations: Annotated[list[CitedQuote], Field(description=CITATIONS)]
    others: NotRequired[Annotated[list[CitedQuote], Field(description=OTHERS)]]
    answer_id: NotRequired[Annotated[str, ANSWER_ID]]


class AnswerResponse(QuestionFields, AnswerFields):
    """The body of /v1/answer's response."""

    answer: Annotated[str | None, ANSWER]
    hits: NotRequired[Annotated[list[ScoredPassage], Field(description="The ranking; with `hits`.")]]
    replies: NotRequired[Annotated[dict[str, Any], REPLIES]]
    prompts: NotRequired[Annotated[list[list[dict[str, str]]], PROMPTS]]
    faults: NotRequired[Annotated[list[dict[str, Any]], FAULTS]]
    passages: NotRequired[Annotated[list[ScoredPassage], TEXTS]]


class RetrieveResponse(QuestionFields):
    """The body of /v1/retrieve's response."""

    passages: Annotated[list[ScoredPassage], Field(description="The best passages, with their texts.")]


class ProblemBody(TypedDict):
    """An error (RFC 9457). It repeats nothing of the request."""

    type: Annotated[str, says("Always about:blank.", "about:blank")]
    title: Annotated[str, says("The status in words.", "Bad Request")]
    status: Annotated[int, says("The HTTP status.", 400)]
    detail: Annotated[str, says("What is wrong.", "Invalid request.")]
    errors: NotRequired[Annotated[list[FieldProblem], Field(description="The wrong fields, 20 at most.")]]


class FieldProblem(TypedDict):
    """One wrong field."""

    at: Annotated[str, says("Path of the field or of its object.", "documents[1].page_url")]
    problem: Annotated[str, says("What is allowed there.", "expected a text")]


class BatchProblem(TypedDict):
    """A question of a batch that could not be answered."""

    problem: Annotated[ProblemBody, Field(description="Why.")]


class BatchResponse(TypedDict):
    """The body of /v1/answer:batch's response."""

    answers: Annotated[
        list[AnswerResponse | BatchProblem], Field(description="One for each question, in their order.")
    ]


class UrlCitation(TypedDict):
    """A source that supports the answer."""

    url: Annotated[str, URL]
    title: Annotated[str, says("The beginning of the quote.", QUOTE)]
    start_index: Annotated[int, says("Always 0: it is about the whole answer.", 0)]
    end_index: Annotated[int, says("Length of the answer.", 12)]


class Annotation(TypedDict):
    """An annotation of a message."""

    type: Annotated[Literal["url_citation"], says("Always url_citation.", "url_citation")]
    url_citation: Annotated[UrlCitation, Field(description="The source.")]


class ChatMessage(TypedDict):
    """The message that answers."""

    role: Annotated[Literal["assistant"], says("Always assistant.", "assistant")]
    content: Annotated[str | None, says("The answer; null where answering failed.", "ada lovelace")]
    refusal: Annotated[str | None, says("Why there is no answer; null where there is one.", None)]
    annotations: Annotated[list[Annotation], Field(description="The evidence that has a url.")]


class ChatChoice(TypedDict):
    """The one choice."""

    index: Annotated[int, says("Always 0.", 0)]
    message: Annotated[ChatMessage, Field(description="The message.")]
    logprobs: Annotated[None, says("Always null.", None)]
    finish_reason: Annotated[Literal["stop"], says("Always stop.", "stop")]


class ChatUsage(TypedDict):
    """Tokens of every chat that the recipe made."""

    prompt_tokens: Annotated[int, says("Tokens of prompts.", 0)]
    completion_tokens: Annotated[int, says("Tokens of replies.", 0)]
    total_tokens: Annotated[int, says("Their sum.", 0)]


class ChatExtension(AnswerFields):
    """Fields of /v1/answer's reply that the protocol has no place for."""


class ChatCompletion(TypedDict):
    """The body of /v1/chat/completions' response."""

    id: Annotated[str, says("Id of the reply, with the request's.", "chatcmpl-0f52a8d1")]
    object: Annotated[Literal["chat.completion"], says("Always chat.completion.", "chat.completion")]
    created: Annotated[int, says("When it was answered, in seconds since the epoch.", 1709709511)]
    model: Annotated[str, says("The model that the request named.", "raypipe")]
    choices: Annotated[list[ChatChoice], Field(description="One choice.")]
    usage: Annotated[ChatUsage, Field(description="Tokens of language models.")]
    raypipe: Annotated[ChatExtension, Field(description="What else is known of the answer.")]


class ChatErrorFields(TypedDict):
    """What is wrong, in the protocol's words."""

    message: Annotated[str, says("What is wrong, and where.", "Invalid request. n: expected 1")]
    type: Annotated[str, says("Kind of the error.", "invalid_request_error")]
    param: Annotated[None, says("Always null: the message names the field.", None)]
    code: Annotated[str, says("The HTTP status.", "400")]


class ChatError(TypedDict):
    """An error in the chat protocol's form."""

    error: Annotated[ChatErrorFields, Field(description="The error.")]


class RecipeName(TypedDict):
    """A recipe."""

    name: Annotated[str, says("Name of its file.", "local")]
    digest: Annotated[str, says("Digest of all that decides its answers.", "5c0f2c1e7d3a9b48")]


ROWS = says("Rows of each table that is searched.", {"texts": 55, "passages": 640})


class IndexResponse(TypedDict):
    """The tables that are searched."""

    release: Annotated[str | None, RELEASE]
    recipe: Annotated[RecipeName, Field(description="The recipe that answers.")]
    embedders: Annotated[list[str], says("Names of its embedders.", ["all-MiniLM-L6-v2"])]
    rows: Annotated[dict[str, int], ROWS]
    examples: Annotated[list[str], says("Some stored questions.", ["who wrote the first program?"])]


class ChatModel(TypedDict):
    """A model that a chat may name: the recipe."""

    id: Annotated[str, says("`raypipe`, or the recipe's name.", "raypipe")]
    object: Annotated[Literal["model"], says("Always model.", "model")]
    created: Annotated[int, says("Always 0: a recipe has no date.", 0)]
    owned_by: Annotated[str, says("Always raypipe.", "raypipe")]
    recipe: Annotated[str, says("Digest of the recipe.", "5c0f2c1e7d3a9b48")]
    models: Annotated[dict[str, str], WEIGHTS]


class ModelList(TypedDict):
    """The models that a chat may name."""

    object: Annotated[Literal["list"], says("Always list.", "list")]
    data: Annotated[list[ChatModel], Field(description="The models.")]


class FeedbackResponse(TypedDict):
    """The body of /v1/feedback's response."""

    answer_id: Annotated[str, says("The answer.", "67d2f1c09b1e5a77c0d4a1f2e3b4c5d6e7f8")]
    kept: Annotated[bool, says("Always true: it is on disk.", True)]


UNAVAILABLE = says("Deployments whose stages are omitted at the moment.", [])


class HealthResponse(TypedDict):
    """Whether the endpoint runs, or is ready."""

    status: Annotated[str, says("alive, or ready.", "ready")]
    unavailable: NotRequired[Annotated[list[str], UNAVAILABLE]]
