"""Training labels from the answers of a labelling recipe: db3's rules 1, 2, 3.1, 3.2.1 and 3.2.2.

Each question takes one path through the rules, or none, with the reason. Knows `labelling`, the store and the
golds; asks no model: the judgements are replies that the recipe has stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from raypipe.core.batches import batches
from raypipe.core.llm import Chat
from raypipe.core.records import (
    ABSTAINED,
    ANSWERED,
    FAULT,
    IDK,
    INVALID,
    INVALID_QUESTION,
    SKIPPED,
    Gold,
    Question,
    Reply,
    digest,
)
from raypipe.evaluation.label_files import LabelRule
from raypipe.evaluation.labelling import Labelling
from raypipe.evaluation.prompts import Unasked
from raypipe.evaluation.truth_steps import AGREES, MENTIONED, NO, RIGHT, TRUTH, WRONG, YES
from raypipe.memo.lookup import ChatRecorder
from raypipe.pipeline.driver import Pipeline
from raypipe.pipeline.recipe_tables import searched
from raypipe.store.index import LanceIndex

AT_ONCE = 100  # answers in memory

Unlabelled: TypeAlias = Literal[
    "no_truth", "not_asked", "no_reply", "no_judgement", "no_context_judgement", "draft"
]
"""Why a question has no label: the data has no truth, a gate kept the step from it, the step's reply or a
judgement broke, or it is a draft of calls that a person is to look at."""

WHY: Mapping[Unlabelled, str] = {
    "no_truth": "the data has no answer",
    "not_asked": "a gate kept the step from it: there was nothing to answer from",
    "no_reply": "the step gave no answer that can be read",
    "no_judgement": "the judge gave no judgement of the answer that can be read",
    "no_context_judgement": "the judge gave no judgement of the context that can be read",
    "draft": "drafted calls that a person has not looked at",
}

PATHS: Mapping[LabelRule, tuple[str, str]] = {
    "1": ("the truth is \u201cinvalid question\u201d", INVALID_QUESTION),
    "3.1": ("the answer was judged right", "the truth"),
    "3.2.1": ("judged wrong, and the context does not say the truth", IDK),
    "3.2.2": ("judged wrong, and the context says the truth", "the truth"),
    "imported": ("a person gave the label", "as given"),
}
"""Rule -> how a question gets there, and its label. Rule 2 is the judgement that 3.1 and 3.2 begin with."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One question with what was said and judged of it."""

    question: Question
    chat: Chat  # that the step sends; (): none, since its passages are not there
    gold: Gold | None
    reply: Reply | None  # the step's; None: it was not reached
    judgements: Mapping[str, str]  # reply of a judging stage -> its text, where it was asked
    rule: LabelRule | None  # None: no label
    label: str  # "": none
    why: Unlabelled | None  # why there is none
    facts: str = ""  # of calls: what they gave


def label_of(
    gold: Gold | None, replies: Mapping[str, Reply], into: str
) -> tuple[LabelRule | None, str, Unlabelled | None]:
    """The rule and the label of a question with these replies, or why it has none.

    >>> said = {"truth": Reply("mira", "answered"), "web": Reply("by tom", "answered"),
    ...         "agrees": Reply("", "false"), "mentioned": Reply("no", "no")}
    >>> label_of(Gold("q", ("mira",)), said, "web")
    ('3.2.1', "i don't know", None)
    """
    truth = replies.get(TRUTH)
    if gold is None or not gold.answers or truth is None or truth.label == SKIPPED:
        return None, "", "no_truth"
    if truth.label == INVALID:
        return "1", INVALID_QUESTION, None
    said = replies.get(into)
    if said is None or said.label == SKIPPED:
        return None, "", "not_asked"
    if said.label not in (ANSWERED, ABSTAINED, INVALID):
        return None, "", "no_reply"
    agrees, mentioned = (replies[n].label if n in replies else SKIPPED for n in (AGREES, MENTIONED))
    if said.label != ABSTAINED and agrees == RIGHT:
        return "3.1", gold.answers[0], None
    if said.label != ABSTAINED and agrees != WRONG:
        return None, "", "no_judgement"
    if mentioned == NO:
        return "3.2.1", IDK, None
    if mentioned == YES:
        return "3.2.2", gold.answers[0], None
    return None, "", "no_context_judgement"


def judged_answers(
    pipeline: Pipeline, questions: Sequence[Question], golds: Mapping[str, Gold], of: Labelling
) -> Iterator[JudgedAnswer]:
    """The stored answers of these questions by the labelling recipe, each with its label or why it has none,
    in order. Asks no model; the tokenizer that counts a context must be here."""
    kit = pipeline.worker.kit(LanceIndex(searched(pipeline.store, pipeline.recipe)))
    recorder = ChatRecorder(Unasked(kit))
    ask = of.step.open(recorder)

    async def chats(batch: Sequence[Question]) -> dict[str, Chat]:
        whole = [q for q in batch if q.outcome not in ("", FAULT)]
        recorder.calls.clear()
        if whole:
            await ask(whole)
        sent = recorder.calls.get(None, ())
        return {q.id: chat for q, (chat, _) in zip(whole, sent, strict=True)}

    with asyncio.Runner() as loop:
        sources = pipeline.answer_sources(questions)
        for batch in batches(pipeline.answers(questions, sources), AT_ONCE):
            sent = loop.run(chats(batch))
            for q in batch:
                yield _judged(q, sent.get(q.id, ()), golds.get(q.id), of)
        loop.run(kit.close())


def _judged(question: Question, chat: Chat, gold: Gold | None, of: Labelling) -> JudgedAnswer:
    replies, into = question.replies, of.into
    rule: LabelRule | None
    why: Unlabelled | None
    if of.judged:
        rule, label, why = label_of(gold, replies, into)
    else:
        written = into in replies and replies[into].label in (ANSWERED, ABSTAINED)
        rule, label, why = None, "", "draft" if written else "no_reply"
    if rule is not None and not chat:  # its sources failed: there is nothing to train on
        rule, label, why = None, "", "no_reply"
    texts = {n: replies[n].text for n in (AGREES, MENTIONED) if n in replies and replies[n].label != SKIPPED}
    facts = [r.text for n, r in replies.items() if not of.judged and n != into and r.label == ANSWERED]
    return JudgedAnswer(question, chat, gold, replies.get(into), texts, rule, label, why, "\n".join(facts))


def data_digest(questions: Sequence[Question], golds: Mapping[str, Gold]) -> str:
    """Names questions with their truths, in order."""
    parts = [p for q in questions for p in (q.id, q.text, *(golds[q.id].answers if q.id in golds else ()))]
    return digest("labelled", *parts)
