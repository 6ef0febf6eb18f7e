"""Pools of examples for prompts: training questions with their answers, and why these are right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from raypipe import readers
from raypipe.api.paths import Data, Fields, format_for, inputs
from raypipe.api.results import Result, outside_loop
from raypipe.api.served import replies
from raypipe.api.session import Session
from raypipe.core.errors import DataError, Unavailable
from raypipe.core.examples import ExampleRow
from raypipe.core.llm import Generated, Sampling
from raypipe.core.records import ANSWERED, Fault, Gold, Question
from raypipe.metrics.textfile import require_file
from raypipe.readers.example_pool import write_pool
from raypipe.readers.formats import Format
from raypipe.recipes.resolve import prompt_file
from raypipe.text.replies import UnreadableReply, read_plain
from raypipe.text.sanitize import escape_markup
from raypipe.text.thoughts import answer_of

PROMPT: Final = "qasper/explain"
EXPLANATION_TOKENS: Final = 100
"""Of one explanation, in the model's tokens: a sentence."""


@dataclass(frozen=True, slots=True)
class ExamplePoolResult(Result):
    """Counts of a pool of examples; a row for each."""

    SCHEMA = "what count:int64"
    out: Path  # the pool
    examples: int  # questions with an answer
    unanswered: int  # questions without one, which are left out
    explained: int  # examples with an explanation
    unexplained: int  # examples without one, of which one was asked for

    @property
    def title(self) -> str:
        said = f", {self.explained} with an explanation" if self.explained or self.unexplained else ""
        lacking = f", {self.unexplained} without one" if self.unexplained else ""
        return (
            f"{self.out}: {self.examples} examples{said}{lacking}; {self.unanswered} questions have no answer"
        )

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for what in ("examples", "unanswered", "explained", "unexplained"):
            yield {"what": what, "count": getattr(self, what)}


@outside_loop
def build_examples(
    data: Data, out: str | Path, explain: str | None = None, format: Format | None = None,
    session: Session | None = None, fields: Fields | None = None,
) -> ExamplePoolResult:  # fmt: skip
    """Writes a pool of examples from any data with answers: the question, its first answer, its document.

    `explain` is a generator of the models file that says in a sentence why each answer is right, from the
    evidence where the data has it. A recipe's step `examples` takes the pool. Raises ConfError, DataError
    where no question has an answer or none could be explained, Unavailable where the generator is down.
    """
    session = session or Session()
    require_file(out, "--out")
    paths = inputs(data, session.settings)
    rows = list(readers.open(paths, format_for(format, paths, fields), readers.ReadCounts()))
    pairs = [(r.question, r.gold) for r in rows if r.question and r.gold and r.gold.answers]
    asked = sum(r.question is not None for r in rows)
    if not pairs:
        raise DataError(f"{', '.join(map(str, paths))}: none of {asked} questions has an answer to show")
    found = [ExampleRow(q.text, g.answers[0], q.citations[0].url if q.citations else "") for q, g in pairs]
    if explain is not None:
        said = asyncio.run(_explained(session, explain, pairs))
        found = [replace(e, explanation=text) for e, text in zip(found, said, strict=True)]
    write_pool(Path(out), found)
    explained = sum(bool(e.explanation) for e in found)
    lacking = len(found) - explained if explain is not None else 0
    return ExamplePoolResult(Path(out), len(found), asked - len(pairs), explained, lacking)


async def _explained(session: Session, name: str, pairs: Sequence[tuple[Question, Gold]]) -> list[str]:
    """An explanation of each pair; "" where the model gave none."""
    model = session.catalog().model(name)
    render = prompt_file(session.settings.conf, PROMPT).renderer()
    chats = []
    for q, g in pairs:
        evidence = "\n".join(g.annotators[0].evidence) if g.annotators else ""
        shown = {"text": q.text, "answer": g.answers[0], "evidence": evidence}
        chats.append(render({name: escape_markup(text) for name, text in shown.items()}))
    sampling = Sampling(max_tokens=EXPLANATION_TOKENS + model.thought_tokens)
    return _explanations(await replies(session, model, chats, sampling), name)


def _explanations(said: Sequence[Generated | Fault], name: str) -> list[str]:
    """Raises Unavailable where a fault is of the moment, DataError where no row has a reply."""
    faults = [s for s in said if isinstance(s, Fault)]
    if down := next((f for f in faults if f.transient), None):
        raise Unavailable(
            f"--explain {name}: expected an explanation of each of {len(said)} answers, found {down.reason}: "
            f"{down.detail}. No pool was written: try again when the model answers"
        )
    if len(faults) == len(said):
        raise DataError(
            f"--explain {name}: expected an explanation of any of {len(said)} answers, found none, first "
            f"{faults[0].reason}: {faults[0].detail}. No pool was written: use another model"
        )
    return [_read(s.text) if isinstance(s, Generated) else "" for s in said]


def _read(text: str) -> str:
    try:
        found = read_plain(answer_of(text))
    except UnreadableReply:
        return ""
    return " ".join(found.text.split()) if found.label == ANSWERED else ""
