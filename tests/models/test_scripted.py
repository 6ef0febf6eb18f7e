"""The scripted generator keeps the contract that real ones keep."""

from __future__ import annotations

import asyncio

import pytest

from raypipe.core.digests import stable
from raypipe.core.errors import ConfError
from raypipe.core.llm import Choice, Generated, JsonSchema, Message, Regex, Sampling
from raypipe.core.records import Fault
from raypipe.models.fake import Scripted

CONTEXT = "The museum opened in 1931.\nThe harbour closed in 1950.\nWhen did the harbour close?"


def ask(model: Scripted, *texts: str, **options: object) -> list[Generated | Fault]:
    adapter = options.pop("adapter", None)
    sampling = Sampling(**{"max_tokens": 30, **options})  # type: ignore[arg-type]
    return asyncio.run(model.generate([(Message("user", t),) for t in texts], sampling, adapter))  # type: ignore[arg-type]


def texts(replies: list[Generated | Fault]) -> list[str]:
    return [r.text if isinstance(r, Generated) else r.reason for r in replies]


def test_it_answers_with_the_line_that_shares_most_words_with_the_question():
    assert texts(ask(Scripted(), CONTEXT)) == ["The harbour closed in 1950."]


def test_a_reply_is_cut_at_max_tokens_and_says_so():
    (reply,) = ask(Scripted(), CONTEXT, max_tokens=2)
    assert isinstance(reply, Generated) and (reply.text, reply.finish) == ("The harbour", "length")


def test_a_reply_ends_before_a_stop_text():
    assert texts(ask(Scripted(), CONTEXT, stop=(" in",))) == ["The harbour closed"]


def test_choices_and_schemas_are_kept():
    assert texts(ask(Scripted(), CONTEXT, constraint=Choice(("museum ship", "harbour")))) == ["museum ship"]
    schema = JsonSchema('{"type":"object","properties":{"ok":{"enum":["yes","no"]}},"required":["ok"]}')
    assert texts(ask(Scripted(), CONTEXT, constraint=schema)) == ['{"ok":"yes"}']


def test_a_script_that_breaks_the_constraint_is_a_wrong_test():
    with pytest.raises(ValueError, match="breaks"):
        ask(Scripted(lambda chat, sampling, adapter: "maybe"), "x", constraint=Regex("yes|no"))


def test_replies_do_not_depend_on_what_else_is_asked():
    many = [f"Line {i} is here.\nWhich is line {i}?" for i in range(9)]
    assert texts(ask(Scripted(), *many)) == [texts(ask(Scripted(), m))[0] for m in many]


def test_a_prompt_that_is_too_long_is_a_fault_of_its_row():
    assert texts(ask(Scripted(max_model_len=50), "word " * 60, CONTEXT)) == [
        "prompt_too_long",
        "The harbour closed in 1950.",
    ]


def test_nothing_said_is_a_fault_and_never_an_empty_reply():
    assert texts(ask(Scripted(lambda chat, sampling, adapter: ""), "x")) == ["empty_reply"]


def test_a_shared_beginning_is_counted_as_cached_the_second_time():
    model, start = Scripted(), "word " * 40
    first, second = ask(model, start + "a?", start + "b?")
    assert isinstance(first, Generated) and isinstance(second, Generated)
    assert (first.cached_tokens, second.cached_tokens) == (0, 32)


def test_an_adapter_must_be_known_and_is_heard():
    assert texts(ask(Scripted(adapters=["calls"]), CONTEXT, adapter="calls")) == [
        "calls: The harbour closed in 1950."
    ]
    with pytest.raises(ConfError, match="calls"):
        ask(Scripted(adapters=["calls"]), CONTEXT, adapter="other")


def test_what_was_asked_has_a_stable_form():
    model = Scripted()
    ask(model, CONTEXT, temperature=0, constraint=Choice(("a", "b")))
    (asked,) = model.asked
    assert stable(asked.sampling) == stable(Sampling(30, temperature=0.0, constraint=Choice(("a", "b"))))
    assert hash(asked) == hash(model.asked[0]) and "Message" in stable(asked.chat)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": 0.001},
        {"top_p": 0},
        {"seed": -1},
        {"stop": ("",)},
        {"frequency_penalty": 3},
        {"presence_penalty": -3},
    ],
    ids=str,
)
def test_sampling_that_no_engine_takes_cannot_be_made(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**{"max_tokens": 9, **wrong})
