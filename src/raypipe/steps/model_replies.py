"""What steps share that ask a language model: what their prompts may use, and a reply read or a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from raypipe.core.llm import Generated
from raypipe.core.protocols import FIELDS, Model
from raypipe.core.records import FAULT, Fault, Question, Reply
from raypipe.text.html import storable
from raypipe.text.prompt import Prompt
from raypipe.text.replies import UnreadableReply
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import REPLY, field_of
from raypipe.text.thoughts import answer_of

SHOWN = 200  # characters of an unreadable reply that its fault repeats

T = TypeVar("T")


def require_prompt(model: Model, prompts: Iterable[Prompt], own: Iterable[str]) -> None:
    """Raises ValueError for a model that writes nothing, and for a prompt that uses what is neither a field
    of a question, nor a reply, nor the step's `own`."""
    if model.kind != "generator":
        raise ValueError(f"model: expected a generator, found {model.name!r} of kind {model.kind}")
    known = FIELDS.union(own)
    for name in (n for prompt in prompts for n in prompt.variables):
        if name not in known and not name.startswith(REPLY):
            raise ValueError(
                f"prompt: it uses {name!r}, which is no field of a question; expected "
                f"{', '.join(sorted(known))}, {REPLY}NAME or, of a generate step, a name in fill"
            )


def prompt_values(question: Question, names: Iterable[str]) -> dict[str, str]:
    """Fields and replies of a question by name, harmless in a prompt."""
    return {name: escape_markup(field_of(question, name)) for name in names}


def read_reply(said: Generated | Fault, step: str, read: Callable[[str], T]) -> T | Reply:
    """What `read` makes of what a model said behind its thoughts; a reply that is a fault of `step`, with its
    text kept, where `read` raises UnreadableReply, and where the model could not do the row."""
    if isinstance(said, Fault):
        return Reply("", FAULT, fault=replace(said, step=step))
    text = storable(said.text)
    try:
        return read(answer_of(text))
    except UnreadableReply as e:
        detail = f"{e}; found {text[:SHOWN]!r}, {said.generated_tokens} tokens, finish {said.finish}"
        fault = Fault(step, "unreadable", detail, transient=False)
        return Reply(text, FAULT, logprob=said.logprob, fault=fault)


def with_replies(question: Question, replies: Mapping[str, Reply]) -> Question:
    """The question with these replies, too. A fault of the moment is also the question's: nothing is stored,
    and it is asked again."""
    faults = [r.fault for r in replies.values() if r.fault is not None and r.fault.transient]
    return replace(question, replies={**question.replies, **replies}, faults=(*question.faults, *faults))
