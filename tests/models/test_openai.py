"""The generator behind an endpoint, against endpoints that behave and misbehave on purpose."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from time import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus

import pytest
from chat_server import ChatServer, Request, completion

from raypipe.core.errors import ConfError, Unavailable
from raypipe.core.llm import Chat, Choice, Generated, Grammar, JsonSchema, Message, Regex, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.hosts import SHOWN, EndpointAddress
from raypipe.models.kit import LocalKit
from raypipe.models.openai import OpenAIClient
from raypipe.store.memo.memo import reply_keys

SAMPLING = Sampling(max_tokens=20)


def chat(text: str) -> Chat:
    return (Message("system", "Be brief."), Message("user", text))


@dataclass
class Answer:
    """What a scripted endpoint sends back."""

    body: str | bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    promised: int | None = None  # Content-Length, where it lies
    delay_s: float = 0.0


def reply(text: Any, finish: str = "stop", **more: Any) -> Answer:
    return Answer(completion(text, finish, **more))


def message(content: Any, finish: str | None = "stop", **fields: Any) -> Answer:
    """A reply whose message has these fields."""
    tree = json.loads(completion(content, finish))
    tree["choices"][0]["message"] |= fields
    return Answer(json.dumps(tree))


HTML = Answer("<html><title>Sign in</title></html>", headers={"Content-Type": "text/html"})
Script = Callable[[dict[str, Any], int], Answer]  # request body, how many came before -> answer


class Server(ChatServer):
    """An endpoint that runs a script, and remembers what it was sent."""

    def __init__(self, script: Script) -> None:
        self.script, self.lock = script, threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.inside = self.most = 0
        super().__init__(self.run)

    def run(self, request: Request, body: dict[str, Any]) -> None:
        with self.lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.keys.append(request.headers["Authorization"])
            self.inside += 1
            self.most = max(self.most, self.inside)
        answer = self.script(body, number)
        if answer.delay_s:
            threading.Event().wait(answer.delay_s)
        with self.lock:
            self.inside -= 1
        with suppress(OSError):  # the client gave up, as a test wants it to
            request.send(answer.body, answer.status, answer.headers, answer.promised)


@contextmanager
def serving(script: Script) -> Iterator[Server]:
    server = Server(script)
    try:
        yield server
    finally:
        server.end()


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


Served = tuple[Model, EndpointAddress]


def served(
    url: str,
    model: str,
    dialect: str = "openai",
    adapters: tuple[tuple[str, str], ...] = (),
    template: str = "",
    **more: Any,
) -> Served:
    """A model at an address; `adapters`: as recipes and as the endpoint call them."""
    names, paths = tuple((name, name) for name, _ in adapters), tuple(path for _, path in adapters)
    entry = Model(
        "served",
        "generator",
        "openai",
        model,
        "",
        "",
        "",
        adapters=names,
        adapter_paths=paths,
        dialect=dialect,
        template=template,
    )
    return entry, EndpointAddress(url, **more)


def ask(
    endpoint: Served, chats: list[Chat], sampling: Sampling = SAMPLING, adapter: str | None = None
) -> tuple[list[Generated | Fault], Time]:
    async def run() -> list[Generated | Fault]:
        model = OpenAIClient(*endpoint, time_.sleep, time_.clock)
        try:
            return await model.generate(chats, sampling, adapter)
        finally:
            await model.close()

    time_ = Time()
    return asyncio.run(run()), time_


def one(
    script: Script, sampling: Sampling = SAMPLING, **options: Any
) -> tuple[Generated | Fault, Server, Time]:
    with serving(script) as server:
        (result,), slept = ask(served(server.url, model="m", **options), [chat("Where?")], sampling)
    return result, server, slept


def test_a_reply_has_its_text_its_end_and_its_tokens():
    result, server, _ = one(lambda body, n: reply("By the sea.", "length"))
    assert result == Generated("By the sea.", "length", 9, 4, 3)
    (body,) = server.bodies
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where?"},
    ]
    assert body["temperature"] == 0 and body["max_tokens"] == 20 and "seed" not in body


@pytest.mark.parametrize("finish", [None, "", "stop", "eos", "eos_token", "STOP", "end_turn", "else"])
def test_a_whole_text_counts_however_its_server_names_the_end(finish):
    result, server, _ = one(lambda body, n: message("By the sea.", finish))
    assert isinstance(result, Generated) and (result.text, result.finish) == ("By the sea.", "stop")
    assert len(server.bodies) == 1


@pytest.mark.parametrize("finish", ["length", "MAX_TOKENS", "model_length"])
def test_a_text_that_was_cut_says_so_however_its_server_names_that(finish):
    result, _, _ = one(lambda body, n: message("By the", finish))
    assert isinstance(result, Generated) and result.finish == "length"
    nameless, _, _ = one(lambda body, n: message("By the", None), Sampling(max_tokens=3))
    assert isinstance(nameless, Generated) and nameless.finish == "length", "of 3 tokens it wrote 3"


@pytest.mark.parametrize(
    "parts",
    [
        [
            {"type": "thinking", "thinking": [{"type": "text", "text": "sea?"}]},
            {"type": "text", "text": "Sea."},
        ],
        [{"type": "reasoning", "text": "sea?"}, {"type": "output_text", "text": "Se"}, "a."],
        [{"type": "thinking", "thinking": "sea?", "signature": "x"}, {"type": "image"}, {"text": "Sea."}],
        [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "sea?"}]},
            None,
            {"text": "Sea."},
        ],
        [
            {"type": "thinking", "text": "sea?"},
            {"type": "text", "text": {"value": "Sea.", "annotations": []}},
        ],
    ],
)
def test_content_in_parts_is_their_text_behind_their_thoughts(parts):
    result, _, _ = one(lambda body, n: reply(parts))
    assert isinstance(result, Generated) and result.text == "<think>sea?</think>Sea."


def test_the_words_of_a_refusal_or_a_tool_call_are_in_its_fault():
    whole, _, _ = one(lambda body, n: reply({"type": "text", "text": "Sea."}))
    assert isinstance(whole, Generated) and whole.text == "Sea."
    ended, _, _ = one(lambda body, n: message("I will not.", "refusal"))
    assert isinstance(ended, Fault) and ended.reason == "declined" and "I will not." in ended.detail
    in_part, _, _ = one(lambda body, n: reply([{"type": "refusal", "refusal": "Not with that."}]))
    assert isinstance(in_part, Fault) and "Not with that." in in_part.detail
    refused, _, _ = one(lambda body, n: message(None, refusal="I cannot help with that."))
    assert isinstance(refused, Fault) and "I cannot help with that." in refused.detail
    called, _, _ = one(lambda body, n: message(None, tool_calls=[{"function": {"name": "search"}}]))
    assert isinstance(called, Fault) and "search" in called.detail


SPENT = {"message": "You exceeded your current quota, please check your plan", "code": "insufficient_quota"}


def test_an_account_with_nothing_left_is_no_rows_fault_and_a_limit_is_another_thing():
    with pytest.raises(Unavailable, match=r"insufficient_quota.*plan and billing"):
        one(lambda body, n: Answer(json.dumps({"error": SPENT}), 429))
    for status, text in (
        (429, "you have run out of credits"),
        (429, "monthly usage limit"),
        (400, "Arrearage"),
    ):
        with pytest.raises(Unavailable, match=text):
            one(lambda body, n, said=(text, status): Answer(*said))
    with pytest.raises(Unavailable, match="insufficient_quota"):
        one(lambda body, n: Answer(json.dumps({"error": SPENT})))
    asks = {"message": f"{SPENT['message']}. Please retry in 32.5s."}
    busy, _, _ = one(lambda body, n: Answer(json.dumps({"error": asks}), 429) if n == 0 else reply("x"))
    assert isinstance(busy, Generated)
    with pytest.raises(Unavailable, match="402"):
        one(lambda body, n: Answer(json.dumps({"error": {"message": "Insufficient Balance"}}), 402))
    with pytest.raises(Unavailable, match="credit balance"):
        one(lambda body, n: Answer('{"error": {"message": "Your credit balance is too low"}}', 400))
    later = {"Retry-After": "1"}
    limited, _, slept = one(
        lambda body, n: Answer(json.dumps({"error": SPENT}), 429, later) if n == 0 else reply("x")
    )
    assert isinstance(limited, Generated) and slept.now >= 1


def test_fields_that_the_server_refuses_are_not_sent_and_the_reply_keeps_its_bound_and_stops():
    entry, _ = served("http://x/v1", model="m")
    unsent = replace(entry, unsent=("max_tokens", "temperature", "stop"))
    with serving(lambda body, n: reply("By the sea.\nAnd more")) as server:
        (result,), _ = ask((unsent, EndpointAddress(server.url)), [chat("x")], Sampling(9, stop=("\n",)))
    assert isinstance(result, Generated) and result.text == "By the sea."
    [body] = server.bodies
    assert body["max_completion_tokens"] == 9 and not {"max_tokens", "temperature", "stop"} & body.keys()


@pytest.mark.slow
def test_replies_come_in_the_order_of_the_chats_however_long_each_takes():
    def script(body: dict[str, Any], n: int) -> Answer:
        text = body["messages"][-1]["content"]
        answer = reply(text.upper())
        answer.delay_s = 0.05 if int(text[1:]) % 2 else 0
        return answer

    with serving(script) as server:
        results, _ = ask(served(server.url, model="m"), [chat(f"q{i}") for i in range(20)])
    assert [r.text for r in results if isinstance(r, Generated)] == [f"Q{i}" for i in range(20)]


def test_no_more_requests_are_in_flight_than_allowed():
    def script(body: dict[str, Any], n: int) -> Answer:
        answer = reply("x")
        answer.delay_s = 0.02
        return answer

    with serving(script) as server:
        ask(served(server.url, model="m", concurrency=3), [chat(f"q{i}") for i in range(15)])
    assert 1 < server.most <= 3


def test_requests_leave_no_faster_than_the_rate_limit():
    with serving(lambda body, n: reply("x")) as server:
        _, slept = ask(served(server.url, model="m", per_minute=30), [chat(f"q{i}") for i in range(7)])
    assert slept.now == pytest.approx(6 * 2.0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer("busy", 503), "unavailable"),
        (Answer("oops", 500), "unavailable"),
        (Answer("slow down", 429), "overloaded"),
        (HTML, "not_the_protocol"),
        (Answer('{"choices": [{"mess'), "not_the_protocol"),
        (Answer('{"choices": [', promised=500), "unreachable"),
        (Answer('{"error": "no such"}'), "not_the_protocol"),
        (Answer('{"choices": []}'), "not_the_protocol"),
        (Answer("[1, 2]"), "not_the_protocol"),
        (Answer(b"\xff\xfe\x00"), "not_the_protocol"),
        (reply(5), "not_the_protocol"),
        (reply("The warr", finish="error"), "broken_off"),
        (Answer('{"choices": [{"message": null, "error": {"code": 502}}]}'), "unavailable"),
        (Answer('{"error": {"message": "too many", "code": 429}, "choices": null}'), "overloaded"),
        (Answer('{"error": {"message": "upstream", "code": "502"}}'), "unavailable"),
    ],
    ids=str,
)
def test_trouble_of_the_endpoint_is_tried_again_and_then_a_transient_fault(answer, reason):
    result, server, _ = one(lambda body, n: answer, tries=3)
    assert isinstance(result, Fault) and result.transient and result.reason == reason
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    "answer", [Answer("busy", 503), Answer("limit", 429), HTML, Answer('{"choices": [', promised=99)], ids=str
)
def test_trouble_that_passes_leaves_no_trace(answer):
    result, server, _ = one(lambda body, n: answer if n < 2 else reply("By the sea."))
    assert isinstance(result, Generated) and result.text == "By the sea." and len(server.bodies) == 3


@pytest.mark.parametrize(
    ("answer", "reason", "transient"),
    [
        (Answer('{"error": "context length exceeded"}', 400), "refused", False),
        (Answer("unprocessable", 422), "refused", False),
        (Answer("too large", 413), "refused", False),
        (Answer("no key", 401), "unauthorised", True),
        (Answer("no access", 403), "forbidden", True),
        (Answer("no such model", 404), "not_found", True),
        (Answer("", 302, {"Location": "http://127.0.0.1:9/"}), "redirected", True),
        (reply(""), "empty_reply", False),
        (reply(None), "empty_reply", False),
        (reply(None, finish="content_filter"), "filtered", False),
        (reply("x", finish="SAFETY"), "filtered", False),
        (
            message(None, "tool_calls", tool_calls=[{"id": "c1", "function": {"name": "search"}}]),
            "tool_call",
            False,
        ),
        (message(None, "stop", refusal="I cannot help with that."), "declined", False),
    ],
    ids=str,
)
def test_what_no_second_try_can_mend_is_tried_once(answer, reason, transient):
    result, server, _ = one(lambda body, n: answer)
    assert isinstance(result, Fault) and (result.reason, result.transient) == (reason, transient)
    assert len(server.bodies) == 1


def test_an_endpoint_that_is_down_is_a_transient_fault_that_names_its_address():
    with serving(lambda body, n: reply("x")) as server:
        url = server.url
    (result,), slept = ask(served(url, model="m", tries=3), [chat("Where?")])
    assert isinstance(result, Fault) and result.reason == "unreachable" and result.transient
    assert url in result.detail and len(slept.slept) == 2


def test_a_model_whose_server_did_not_answer_its_last_call_is_unavailable_until_it_answers():
    from raypipe.serving.ray.models import ModelDeployment  # imports Ray

    async def states(server: Server) -> list[bool]:
        model, at = served(server.url, model="m", tries=1)
        kit, found = LocalKit(None, endpoints={model.path: at}), []
        deployment: Any = SimpleNamespace(_kit=kit)
        for status in (200, 503, 401, 200):
            server.script = lambda body, n, s=status: reply("x") if s == 200 else Answer("", s)
            await kit.generator(model)([chat("Where?")], SAMPLING)
            found.append(await kit.unavailable() == ["served"])
            if found[-1]:
                with pytest.raises(Unavailable, match="no answer from the server of served"):
                    await ModelDeployment.ready(deployment)
            else:
                await ModelDeployment.ready(deployment)
        await kit.close()
        return found

    with serving(lambda body, n: reply("x")) as server:
        assert asyncio.run(states(server)) == [False, True, True, False]


def test_a_slow_endpoint_costs_its_timeout_and_no_more():
    def script(body: dict[str, Any], n: int) -> Answer:
        answer = reply("late")
        answer.delay_s = 0.6
        return answer

    result, _, _ = one(script, timeout_s=0.1, tries=2)
    assert isinstance(result, Fault) and result.reason == "timeout" and result.transient


def test_waits_double_and_are_never_quite_the_same():
    _, _, slept = one(lambda body, n: Answer("", 500), tries=6)
    assert len(slept.slept) == 5 and len(set(slept.slept)) == 5
    for i, wait in enumerate(slept.slept):
        assert 0.5 * 2**i * 0.5 <= wait <= 0.5 * 2**i * 1.5


@pytest.mark.parametrize("header", [lambda: "7", lambda: formatdate(time() + 8, usegmt=True)])
def test_retry_after_is_kept_by_every_row_not_by_the_one_that_heard_it(header):
    def script(body: dict[str, Any], n: int) -> Answer:
        return Answer("", 429, {"Retry-After": header()}) if n == 0 else reply("x")

    with serving(script) as server:
        results, slept = ask(served(server.url, model="m", concurrency=1), [chat("a"), chat("b")])
    assert all(isinstance(r, Generated) for r in results)
    assert 5 <= slept.now <= 10


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6.5s"},
        {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "0m6s"},
        {"retry-after-ms": "6200"},
    ],
    ids=str,
)
def test_a_limit_that_a_reply_announces_is_kept_before_it_is_met(headers):
    with serving(lambda body, n: Answer(completion("x"), 200, {**headers, "Content-Type": "json"})) as server:
        results, slept = ask(served(server.url, model="m", concurrency=1), [chat("a"), chat("b")])
    assert all(isinstance(r, Generated) for r in results)
    assert 6 <= slept.now <= 7 and len(server.bodies) == 2


def test_rows_that_a_limit_holds_back_wait_for_their_turn_while_others_get_through():
    with serving(lambda body, n: Answer("slow", 429) if n % 4 else reply("x")) as server:
        results, _ = ask(
            served(server.url, model="m", concurrency=8, tries=3), [chat(f"q{i}") for i in range(60)]
        )
    assert sum(isinstance(r, Generated) for r in results) > 50, "by tries alone two in three would be lost"


def test_tokens_a_minute_hold_requests_apart_by_their_prompts_and_longest_replies():
    chats = [chat("x" * 62) for _ in range(4)]  # with the system's 9 letters 18 tokens, and 20 of the reply
    with serving(lambda body, n: reply("x")) as server:
        _, slept = ask(served(server.url, model="m", tokens_per_minute=380), chats)
    assert slept.now == pytest.approx(3 * 60 * 38 / 380, rel=0.02)


def test_servers_of_one_model_share_the_chats_and_do_those_of_one_that_dies():
    def dying(body: dict[str, Any], n: int) -> Answer:
        return reply("x") if n < 20 else Answer("", 503)

    def limited(body: dict[str, Any], n: int) -> Answer:
        return Answer("", 429, {"Retry-After": "1"}) if n % 5 == 4 else reply("x")

    with serving(lambda body, n: reply("x")) as good, serving(dying) as dead, serving(limited) as slow:
        urls = ",".join(s.url for s in (good, dead, slow))
        results, _ = ask(served(urls, model="m", concurrency=4), [chat(f"q{i}") for i in range(300)])
    assert all(isinstance(r, Generated) for r in results)
    answered = len(good.bodies) + min(len(dead.bodies), 20) + sum(n % 5 != 4 for n in range(len(slow.bodies)))
    assert answered == 300, "none twice"
    assert len(dead.bodies) < 40 and len(slow.bodies) > 5


def test_a_server_that_comes_back_is_asked_again():
    with (
        serving(lambda body, n: Answer("", 503) if n == 0 else reply("x")) as back,
        serving(lambda body, n: reply("x")) as good,
    ):
        results, slept = ask(served(f"{back.url},{good.url}", model="m", concurrency=1), [chat("a")] * 9)
        assert all(isinstance(r, Generated) for r in results) and not slept.slept
        assert len(good.bodies) == 9 and len(back.bodies) == 1

        async def later() -> None:
            time_ = Time()
            client = OpenAIClient(*served(f"{back.url},{good.url}", model="m"), time_.sleep, time_.clock)
            back.bodies.clear()
            await client.generate([chat("a")], SAMPLING)
            time_.now += 60
            await client.generate([chat("b")] * 4, SAMPLING)
            await client.close()

        asyncio.run(later())
    assert len(back.bodies) >= 2


def test_a_long_outage_costs_each_further_row_one_try():
    with serving(lambda body, n: Answer("", 500)) as server:
        results, _ = ask(
            served(server.url, model="m", concurrency=2, tries=4), [chat(f"q{i}") for i in range(50)]
        )
    assert all(isinstance(r, Fault) and r.transient for r in results)
    assert len(server.bodies) <= 2 * 4 + 2 * 4 + 50


def test_the_key_goes_into_the_header_and_nowhere_else(caplog):
    caplog.set_level(logging.DEBUG)
    key = "sk-not-a-real-key"
    with serving(lambda body, n: Answer(f"wrong key {key}", 401)) as server:
        endpoint = served(server.url, model="m", key=key)
        (result,), _ = ask(endpoint, [chat("Where?")])
    assert server.keys == [f"Bearer {key}"]
    assert isinstance(result, Fault) and "***" in result.detail
    for text in (
        str(result),
        repr(endpoint),
        repr(OpenAIClient.__dict__),
        caplog.text,
        json.dumps(server.bodies),
    ):
        assert key not in text


@pytest.mark.parametrize(
    "written", [str, json.dumps, repr, quote_plus, lambda key: json.dumps(json.dumps(key))]
)
@pytest.mark.parametrize("before", [0, SHOWN - 40, SHOWN - 10])
def test_no_part_of_a_key_is_shown_however_a_server_quotes_it_and_where_that_is_cut(written, before):
    key = "sk-not'a\\real\"key+/=0123456789"
    with serving(lambda body, n: Answer("x" * before + written(key), 401)) as server:
        (result,), _ = ask(served(server.url, model="m", key=key, tries=1), [chat("Where?")])
    assert isinstance(result, Fault) and "***" in result.detail
    assert not re.search("sk-|not|real|key[+]|0123", result.detail.partition("Check the key")[0])


def test_a_key_with_a_line_end_is_refused_without_showing_it():
    with serving(lambda body, n: reply("x")) as server, pytest.raises(ConfError) as caught:
        ask(served(server.url, model="m", key="sk-secret\n"), [chat("Where?")])
    assert "sk-secret" not in str(caught.value)


def test_an_address_with_a_password_in_it_is_refused():
    with pytest.raises(ConfError, match="password"):
        served("https://user:pw@example.org/v1", model="m")


def test_sampling_says_everything_so_that_no_default_of_the_endpoint_decides():
    sampling = Sampling(9, 0.45, 0.7, 3, 0.5, 0.6, ("\n",), logprobs=True)
    tokens = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]}
    result, server, _ = one(lambda body, n: reply("ab", logprobs=tokens), sampling, dialect="vllm")
    assert isinstance(result, Generated) and result.logprob == -0.75
    expected = {
        "max_tokens": 9,
        "temperature": 0.45,
        "top_p": 0.7,
        "seed": 3,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.6,
        "stop": ["\n"],
        "logprobs": True,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert expected.items() <= server.bodies[0].items()


@pytest.mark.parametrize(
    ("constraint", "sent"),
    [
        (Choice(("a", "b")), {"choice": ["a", "b"]}),
        (Regex("a|b"), {"regex": "a|b"}),
        (JsonSchema('{"enum":["a"]}'), {"json": '{"enum":["a"]}'}),
        (JsonSchema('{"type":"string","maxLength":3}'), {"json": '{"type":"string","pattern":"^.{0,3}$"}'}),
        (Grammar('start: "a"'), {"grammar": 'start: "a"'}),
    ],
)
def test_a_vllm_server_is_sent_every_constraint(constraint, sent):
    _, server, _ = one(lambda body, n: reply("a"), Sampling(9, constraint=constraint), dialect="vllm")
    assert server.bodies[0]["structured_outputs"] == sent


def test_an_openai_endpoint_takes_json_schemas_and_no_other_constraint():
    _, server, _ = one(lambda body, n: reply('"a"'), Sampling(9, constraint=JsonSchema('{"enum":["a"]}')))
    assert server.bodies[0]["response_format"]["json_schema"]["schema"] == {"enum": ["a"]}
    with pytest.raises(ConfError, match="dialect: vllm"):
        ask(
            served("http://127.0.0.1:9/v1", model="m"),
            [chat("x")],
            Sampling(9, constraint=Choice(("a",))),
        )


def test_an_adapter_is_asked_under_the_name_the_endpoint_gives_it():
    with serving(lambda body, n: reply("x")) as server:
        endpoint = served(server.url, model="base", adapters=(("calls", "base-calls-v2"),))
        ask(endpoint, [chat("x")], adapter="calls")
        with pytest.raises(ConfError, match="entry has calls"):
            ask(endpoint, [chat("x")], adapter="other")
    assert [body["model"] for body in server.bodies] == ["base-calls-v2"]


def test_text_that_cannot_be_sent_is_a_final_fault_of_its_row():
    with serving(lambda body, n: reply("x")) as server:
        bad, good = ask(served(server.url, model="m"), [chat("\ud800"), chat("fine")])[0]
    assert isinstance(bad, Fault) and bad.reason == "unsendable" and not bad.transient
    assert isinstance(good, Generated)


def test_no_chats_are_no_requests():
    assert ask(served("http://127.0.0.1:9/v1", model="m"), [])[0] == []


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_in_a_field_of_their_own_stand_before_the_reply_with_their_marks(field):
    def sent(content: Any, finish: str = "stop") -> Answer:
        tree = json.loads(completion(content, finish))
        tree["choices"][0]["message"][field] = "Maybe Bo?"
        return Answer(json.dumps(tree))

    whole, _, _ = one(lambda body, n: sent("Anna Lind"))
    assert isinstance(whole, Generated) and whole.text == "<think>Maybe Bo?</think>Anna Lind"
    for content in (None, "", " \n"):
        cut, _, _ = one(lambda body, n, content=content: sent(content, "length"))
        assert isinstance(cut, Generated) and (cut.text, cut.finish) == ("<think>Maybe Bo?", "length")


def test_the_arguments_of_the_chat_template_are_sent():
    _, server, _ = one(lambda body, n: reply("x"), template='{"enable_thinking":false}')
    assert server.bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}


def test_what_a_server_may_cache_is_marked_where_its_entry_asks_for_it_and_tokens_from_there_are_counted():
    kept: set[str] = set()

    def caches_to_a_mark(body: dict[str, Any], n: int) -> Answer:
        """As Anthropic's servers do, and in their words."""
        had = 0
        for at, turn in enumerate(body["messages"]):
            if isinstance(turn["content"], list) and "cache_control" in turn["content"][-1]:
                had = 7 if (prefix := json.dumps(body["messages"][: at + 1])) in kept else 0
                kept.add(prefix)
        tree = json.loads(completion("x"))
        tree["usage"] = {"prompt_tokens": 9, "completion_tokens": 3, "cache_read_input_tokens": had}
        return Answer(json.dumps(tree))

    chats, found = [chat("Where?"), chat("When?")], {}
    for marks in (False, True):
        with serving(caches_to_a_mark) as server:
            model, at = served(server.url, model="m", concurrency=1)
            model = replace(model, cache_control=marks)
            replies, _ = ask((model, at), chats)
            found[marks] = [r.cached_tokens for r in replies if isinstance(r, Generated)]
            keys = reply_keys(model, chats, SAMPLING, None)
        assert keys == reply_keys(replace(model, cache_control=False), chats, SAMPLING, None)
        assert server.bodies[0]["messages"][-1]["content"] in ("Where?", "When?")  # what differs has no mark
    assert found == {False: [0, 0], True: [0, 7]}
