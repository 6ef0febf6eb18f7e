"""A generator that answers, judges and looks for truths as a table says: loader `label_script:open_model`."""

import asyncio
import hashlib
import json
import os
import signal
from pathlib import Path

from raypipe.models.fake import Scripted

NAMES = {  # name in the question -> gold, what the step says, what the judge says of it, and of the context
    "Arle": ("invalid question", "", "", ""),
    "Birk": ("Tessa Blume", "Tessa Blume keeps it.", '{"Accuracy": "True"}', ""),
    "Celm": ("Ivo Karr", "Tessa Blume keeps it.", '{"Accuracy": "False"}', "no"),
    "Dorn": ("Ivo Karr", "Tessa Blume keeps it.", '{"Accuracy": "False"}', "Yes."),
    "Elst": ("Ivo Karr", "Sorry, I don\u2019t know.", "", "no"),
    "Falk": ("Ivo Karr", "i don't know", "", "yes"),
    "Gade": ("Ivo Karr", "invalid question", '{"Accuracy": "False"}', "no"),
    "Hove": ("Ivo Karr", "Nobody keeps it.", "I cannot judge that.", ""),
    "Isen": ("Ivo Karr", "Nobody keeps it.", '{"Accuracy": "False"}', "perhaps"),
}
QUESTION = "Who keeps the lantern of {}?"
ASKED = []  # (name, what was asked: answer, check or context, chat) of every reply that was given
KILL = []  # the number of calls after which the process dies, at most one


class Killed(SystemExit):
    """The process ends before the model replies; a stage takes other exceptions for its own."""


def what(chat):
    """What a chat asks for."""
    system = chat[0].content
    return "check" if "check answers" in system else "context" if "mention an answer" in system else "answer"


def say(chat, sampling, adapter):
    name = next(n for n in NAMES if QUESTION.format(n) in chat[-1].content)
    _, answer, check, context = NAMES[name]
    kind = what(chat)
    ASKED.append((name, kind, chat))
    return {"answer": answer, "check": check, "context": context}[kind]


def open_model(model, device):
    scripted = Scripted(say, max_model_len=8192)

    async def generate(chats, sampling, adapter=None):
        if KILL and len(ASKED) >= KILL[0]:
            raise Killed
        return await scripted.generate(chats, sampling, adapter)

    return generate


def open_drilled(model, device):
    """The same for a driver that dies: notes each chat in the file `asked` of the folder LABEL_DRILL. When
    `kill` names a count that was reached, it kills the process that `driver` names, and never replies."""
    scripted, folder = Scripted(say, max_model_len=8192), Path(os.environ["LABEL_DRILL"])

    async def generate(chats, sampling, adapter=None):
        if (folder / "kill").is_file() and len(asked(folder)) >= int((folder / "kill").read_text()):
            driver = int((folder / "driver").read_text())  # after the wait it may name the next one
            await asyncio.sleep(0.5)  # replies of other chats are stored
            os.kill(driver, signal.SIGKILL)
            await asyncio.sleep(3600)
        replies = await scripted.generate(chats, sampling, adapter)
        lines = [
            f"{what(c)} {hashlib.sha256(json.dumps([[m.role, m.content] for m in c]).encode()).hexdigest()}\n"
            for c in chats
        ]
        with (folder / "asked").open("ab", buffering=0) as out:
            out.write("".join(lines).encode())
        return replies

    return generate


def asked(folder):
    """What each chat that was answered asked for, and its digest, in order."""
    file = folder / "asked"
    return file.read_text().splitlines() if file.is_file() else []
