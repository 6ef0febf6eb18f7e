"""Clients of today against the endpoint, each in an environment of its own, as their users have it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from http_app import OPEN, listening, served

from raypipe.models.kit import LocalKit
from raypipe.serving.answerer import Answerer

pytestmark = [pytest.mark.drill, pytest.mark.slow]

OPENAI = """
from openai import OpenAI

client = OpenAI(base_url=URL, api_key="none")
tool = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
messages = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "what is this?"}, picture]},
    {"role": "assistant", "content": None, "tool_calls": [tool]},
    {"role": "tool", "tool_call_id": "c1", "content": "a pump"},
    {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
]
more = dict(model="raypipe", tool_choice="none", response_format={"type": "text"}, reasoning_effort="low")
said = client.chat.completions.create(messages=messages, **more)
print(said.choices[0].message.content)
messages.insert(4, said.choices[0].message.model_dump())  # as clients send a reply back
again = client.chat.completions.create(messages=messages, stream=True, **more)
print("".join(chunk.choices[0].delta.content or "" for chunk in again))
"""
LANGCHAIN = """
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

llm = ChatOpenAI(base_url=URL, api_key="none", model="raypipe", temperature=0, max_tokens=64)
call = {"name": "search", "args": {}, "id": "c1"}
turns = [
    SystemMessage("Be brief."), HumanMessage("what is this?"), AIMessage("", tool_calls=[call]),
    ToolMessage("a pump", tool_call_id="c1"), HumanMessage([{"type": "text", "text": QUESTION}]),
]
print(llm.invoke(turns).content)
print("".join(piece.content for piece in llm.stream(turns)))
"""
LLAMA_INDEX = """
from llama_index.core.llms import ChatMessage, TextBlock
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(api_base=URL, api_key="none", model="raypipe", is_chat_model=True, context_window=4096)
turns = [
    ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="what is this?"),
    ChatMessage(role="assistant", content="a pump"),
    ChatMessage(role="user", blocks=[TextBlock(text=QUESTION)]),
]
print(llm.chat(turns).message.content)
print("".join(piece.delta for piece in llm.stream_chat(turns)))
"""
CLIENTS = {
    "openai==3.57.0": OPENAI,
    "langchain-openai==1.7.4": LANGCHAIN,
    "llama-index-llms-openai-like==0.8.1": LLAMA_INDEX,
}
"""Package -> a program that prints the answer to QUESTION twice, the second time from a stream."""


def environment(package):
    """The Python of an environment with a package and what it needs, made once in the user's cache. Skips
    where no index of packages can be reached."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "raypipe-tests" / "clients" / package
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        uv = Path(sys.prefix) / "bin" / "uv"
        subprocess.run([uv, "venv", "--quiet", "--clear", folder], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", python, package]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{package} cannot be installed here: {done.stderr[-300:]}")
        (folder / "ready").touch()
    return python


@pytest.mark.parametrize("package", CLIENTS)
def test_a_client_of_today_gets_the_answer_whole_and_as_a_stream(package, filled, tmp_path):
    python = environment(package)
    job = next(q for q in filled.answers if q.outcome == "answered")
    kit = LocalKit(None, "transformers")
    with listening(served(Answerer(filled.recipe, kit, filled.store.uri), OPEN)) as url:
        program = f"URL, QUESTION = {url + '/v1'!r}, {job.text!r}\n{CLIENTS[package]}"
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run([python, "-c", program], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [job.answer] * 2
