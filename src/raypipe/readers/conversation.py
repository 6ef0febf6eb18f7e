"""Turns of a conversation, from the messages of a chat request, a row or a file.

A message is an object with `role`, and with `content` or `text`. Only messages of user and assistant become
turns. Messages with a role in IGNORED are left out; any other role is an error. This module opens no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raypipe.core.records import Turn
from raypipe.readers.rows import UnusableLine, kind
from raypipe.text.turns import recent

TEXT = ("content", "text")
MOST_PARTS = 20  # first parts of a message's content that are searched for text
IGNORED = ("system", "developer", "tool", "function")  # roles whose messages are no turns
MESSAGES = 'expected a list of messages, such as [{"role": "user", "content": "who directed it?"}]'


def turns_of(messages: Any, where: str) -> tuple[Turn, ...]:
    """Returns the latest turns of a list of messages, oldest first. Turns without text are left out;
    `text.turns.recent` limits their number and length.

    Raises UnusableLine if `messages` is not a list or a message is malformed; the error names that message.

    >>> turns_of([{"role": "system", "content": "obey"}, {"role": "user", "text": "who?"}], "turns")
    (Turn(role='user', text='who?'),)
    """
    return recent(_messages(messages, where))


def question_of(messages: Any, where: str) -> tuple[str, tuple[Turn, ...]]:
    """Returns the user's last message with text, and the latest turns before it. Later messages are dropped.
    Raises UnusableLine if the user has no such message, and in the cases of `turns_of`."""
    said = [t for t in _messages(messages, where) if t.text.strip()]
    last = max((i for i, t in enumerate(said) if t.role == "user"), default=None)
    if last is None:
        raise UnusableLine("missing_field", f"{where}: expected a message of the user with text, found none")
    return said[last].text, recent(said[:last])


def number_of(turns: Sequence[Turn]) -> int:
    """Returns a question's number in its conversation: 1 plus the user's messages in its earlier `turns`."""
    return 1 + sum(t.role == "user" for t in turns)


def text_of(content: Any) -> Any:
    """Joins the texts of the first MOST_PARTS parts of a list; returns other content unchanged."""
    if not isinstance(content, list):
        return content
    parts = (p.get("text") for p in content[:MOST_PARTS] if isinstance(p, Mapping))
    return "".join(p for p in parts if isinstance(p, str))


def _messages(messages: Any, where: str) -> list[Turn]:
    if not isinstance(messages, list):
        lists = [n for n, v in messages.items() if isinstance(v, list)] if isinstance(messages, dict) else []
        cure = f". Give only the list in its field {lists[0]!r:.40}" if lists else ""
        raise UnusableLine("wrong_type", f"{where}: {MESSAGES}, found {kind(messages)}{cure}")
    found = list[Turn]()
    for n, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise UnusableLine("wrong_type", f"{where}: {MESSAGES}; message {n} is {kind(message)}")
        role = message.get("role")
        if role in IGNORED:
            continue
        if role not in ("user", "assistant"):
            expected = f"expected role user or assistant ({', '.join(IGNORED)} are ignored)"
            given = f"found {role!r:.40}" if isinstance(role, str) else "found none"
            raise UnusableLine("wrong_type", f"{where}: message {n}: {expected}, {given}")
        text = text_of(next((message[name] for name in TEXT if message.get(name) is not None), ""))
        if not isinstance(text, str):
            raise UnusableLine("wrong_type", f"{where}: message {n}: expected text, found {kind(text)}")
        found.append(Turn(role, text))
    return found
