"""Prompts: chat templates with variables that are filled per row.

Knows templates and chats; knows no step, no file and no model. A prompt is checked when it is made: what its
two messages use is exactly what it declares, and both render whatever texts are put in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from raypipe.core.llm import Chat, Message, MessageRole
from raypipe.text.template import renderer, uses

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system and a user message. The texts are identity; the file that they came from is not."""

    user: str
    system: str = ""  # "": none
    variables: tuple[str, ...] = ()  # all that the two use, each once; a reply as replies.NAME

    def __post_init__(self) -> None:
        if not self.user.strip():
            raise ValueError("user: expected a message, found none")
        used: set[str] = set()
        for name in ("system", "user"):
            try:
                found = uses(getattr(self, name))
            except ValueError as e:
                raise ValueError(f"{name}: it is no prompt template: {e}") from e
            if undeclared := sorted(found - set(self.variables)):
                raise ValueError(
                    f"{name}: it uses {undeclared[0]!r}, which variables does not declare; "
                    f"declared: {', '.join(self.variables) or 'nothing'}"
                )
            used |= found
        if idle := [v for v in self.variables if v not in used]:
            raise ValueError(f"variables: {idle[0]!r} is declared and used in neither message")

    def renderer(self) -> Callable[[Mapping[str, str]], Chat]:
        texts: list[tuple[MessageRole, str]] = [("system", self.system), ("user", self.user)]
        messages = [(role, renderer(text)) for role, text in texts if text.strip()]

        def render(values: Mapping[str, str]) -> Chat:
            given = {name: values[name] for name in self.variables}
            return tuple(Message(role, fill(given)) for role, fill in messages)

        return render
