"""Training labels from the answers of a labelling recipe: db3's rules 1, 2, 3.1, 3.2.1 and 3.2.2.

Each question takes one path through the rules, or gets no label and the reason. A person's corrections,
splits and the share of abstentions follow. The module reads the store and the golds. It calls no model: the
recipe has stored the judgements as replies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from raypipe.contrib.finetune.label_files import JudgedAnswer, Label, LabelRule, Split, Unlabelled
from raypipe.contrib.finetune.labelling import Labelling
from raypipe.contrib.finetune.leaks import groups
from raypipe.contrib.finetune.truth_steps import AGREES, MENTIONED, NO, RIGHT, TRUTH, WRONG, YES
from raypipe.core.bounded_rows import batches
from raypipe.core.digests import part_of
from raypipe.core.errors import DataError
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
from raypipe.evaluation.collect import NoReplyKit
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.recipe_tables import searched
from raypipe.store.index import LanceIndex
from raypipe.store.memo.lookup import ChatRecorder
from raypipe.text.replies import abstains

AT_ONCE = 100  # number of answers in memory at a time


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
"""Rule -> (condition, label). Rule 2 is the judgement of the answer, with which 3.1 and 3.2 begin."""


def label_of(
    gold: Gold | None, replies: Mapping[str, Reply], into: str
) -> tuple[LabelRule | None, str, Unlabelled | None]:
    """Applies the rules to one question's replies. Returns rule, label, and the reason for no label.

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
    """Yields the labelling recipe's stored answers to these questions, in order. Each has its label, or the
    reason for no label. Calls no model, but needs the tokenizer that counts the context's tokens."""
    kit = pipeline.worker.kit(LanceIndex(searched(pipeline.store, pipeline.recipe)))
    recorder = ChatRecorder(NoReplyKit(kit))
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
    if rule is not None and not chat:  # the question's sources failed, so there is no chat to train on
        rule, label, why = None, "", "no_reply"
    texts = {n: replies[n].text for n in (AGREES, MENTIONED) if n in replies and replies[n].label != SKIPPED}
    facts = [r.text for n, r in replies.items() if not of.judged and n != into and r.label == ANSWERED]
    return JudgedAnswer(question, chat, gold, replies.get(into), texts, rule, label, why, "\n".join(facts))


def data_digest(questions: Sequence[Question], golds: Mapping[str, Gold]) -> str:
    """Returns a digest of questions with their true answers, in order."""
    parts = [p for q in questions for p in (q.id, q.text, *(golds[q.id].answers if q.id in golds else ()))]
    return digest("labelled", *parts)


EXAMPLES = 2  # number of examples shown per rule
_PARTS = 1000  # number of parts of the questions; a share of the parts is held out


@dataclass(frozen=True, slots=True)
class MixLine:
    """Label counts of one domain."""

    domain: str  # "": the data names none
    labels: int
    rules: Mapping[str, int]  # rule -> number of labels
    idk: float  # share of labels that say "i don't know", 0..1


@dataclass(frozen=True, slots=True)
class LabelPath:
    """A path through the rules, or a reason for no label, with its number of questions."""

    rule: str  # "": no label
    why: str  # reason for no label; "": there is a label
    questions: int
    about: str  # the condition or the reason, in words
    label: str  # the label that the rule gives; "": none


@dataclass(frozen=True, slots=True)
class LabelExample:
    """An example of a rule, for people."""

    rule: str
    id: str
    query: str
    gold: str
    reply: str  # of the step; "": the step did not run
    judgements: Mapping[str, str]  # name of a judging stage's reply -> its text
    label: str


def labels_from(
    judged: Sequence[JudgedAnswer], reviewed: Mapping[str, str], held_out: float, idk_share: float | None
) -> tuple[Label, ...]:
    """Returns the labels, in the order of the questions.

    `reviewed`: question id -> a person's label, which outranks the rules. `held_out`: share of questions in
    the split held-out; near duplicates are in the same split. `idk_share`: share of train rows that say
    "i don't know", reached by omitting rows; None: unchanged.
    """
    splits = splits_of({a.question.id: a.question.text for a in judged}, held_out)
    found = []
    for a in judged:
        said = reviewed.get(a.question.id)
        rule, label = (a.rule, a.label) if said is None else ("imported", said)
        if rule is None or not a.chat:
            continue
        gold = a.gold.answers[0] if a.gold is not None and a.gold.answers else None
        domain = a.gold.labels.get("domain") if a.gold is not None else None
        found.append(Label(a.question.id, a.chat, label, rule, domain, splits[a.question.id], gold))
    return mixed(found, idk_share)


def splits_of(questions: Mapping[str, str], held_out: float) -> dict[str, Split]:
    """Returns question id -> split. `questions`: id -> text. Near duplicates get the same split."""
    parts = {id: part_of(first, _PARTS, "held-out") for id, first in groups(questions).items()}
    return {id: "held-out" if part < held_out * _PARTS else "train" for id, part in parts.items()}


def mixed(labels: Sequence[Label], idk_share: float | None) -> tuple[Label, ...]:
    """Omits train rows until `idk_share` of them say "i don't know".

    Digests of ids choose the omitted rows. So a smaller share keeps a part of the "i don't know" rows of a
    larger share. Raises DataError if the share needs a kind that has no rows."""
    if idk_share is None:
        return tuple(labels)
    train = [x for x in labels if x.split == "train"]
    idk, other = ([x for x in train if abstains(x.label) is is_idk] for is_idk in (True, False))
    if train and not (other and (idk or not idk_share)):
        raise DataError(
            f'labels: --idk-share {idk_share:g}: expected train rows that say "i don\'t know" and others, '
            f"found {len(idk)} and {len(other)}. Label questions of both kinds, or leave the share out"
        )
    wanted = round(idk_share / (1 - idk_share) * len(other))
    kept = _first(idk, wanted)
    if len(idk) < wanted:
        kept = {x.question_id for x in idk} | _first(other, round((1 - idk_share) / idk_share * len(idk)))
    else:
        kept |= {x.question_id for x in other}
    return tuple(x for x in labels if x.split != "train" or x.question_id in kept)


def _first(labels: Sequence[Label], n: int) -> set[str]:
    return {x.question_id for x in sorted(labels, key=lambda x: digest("mix", x.question_id))[:n]}


def require_kinds(labels: Sequence[Label], by_rules: bool, judged: Sequence[JudgedAnswer]) -> None:
    """Raises DataError if there are no train rows, or if they teach only one kind of reply. The kinds of
    rules' labels are answer, "i don't know" and "invalid question"; each text of calls is its own kind."""
    train = [x.label for x in labels if x.split == "train"]
    if not train:
        whys = Counter(WHY[a.why] for a in judged if a.why is not None)
        reasons = "".join(f"; {n}: {why}" for why, n in whys.most_common())
        raise DataError(
            f"labels: expected train rows, found none of {len(judged)} questions{reasons}. Lower --held-out, "
            "or label more questions"
        )
    kinds = set(train)
    if by_rules:
        words = {x: "invalid question" if "invalid" in x.lower() else "answer" for x in train}
        kinds = {"i don't know" if abstains(x) else word for x, word in words.items()}
    if len(kinds) < 2:
        raise DataError(
            f"labels: expected labels of more than one kind, found {len(train)}, all {kinds.pop()!r}. Take "
            "questions that the step answers rightly and others that it cannot answer, or another --idk-share"
        )


def mix_of(labels: Sequence[Label]) -> tuple[MixLine, ...]:
    """Counts the labels of each domain, then of all domains."""
    domains = sorted({x.domain or "" for x in labels})
    shown = [(d, [x for x in labels if (x.domain or "") == d]) for d in domains]
    out = []
    for domain, some in [*shown, ("all", list(labels))]:
        rules = dict(sorted(Counter[str](x.rule for x in some).items()))
        idk = sum(abstains(x.label) for x in some)
        out.append(MixLine(domain, len(some), rules, idk / max(len(some), 1)))
    return tuple(out)


def paths_of(judged: Sequence[JudgedAnswer], reviewed: Mapping[str, str]) -> tuple[LabelPath, ...]:
    """Counts the questions of each path: all rules first, then the reasons for no label."""
    rules = Counter("imported" if a.question.id in reviewed else a.rule for a in judged)
    whys = Counter[Unlabelled](a.why for a in judged if a.why is not None and a.question.id not in reviewed)
    found = [LabelPath(r, "", rules[r], *PATHS[r]) for r in PATHS if r != "imported" or reviewed]
    return (*found, *(LabelPath("", w, n, WHY[w], "") for w, n in sorted(whys.items())))


def examples_of(judged: Sequence[JudgedAnswer], labels: Sequence[Label]) -> tuple[LabelExample, ...]:
    """Returns the first questions of each rule."""
    by_id, seen = {x.question_id: x for x in labels}, Counter[str]()
    found = []
    for a in judged:
        label = by_id.get(a.question.id)
        if label is None or seen[label.rule] >= EXAMPLES:
            continue
        seen[label.rule] += 1
        said, q = a.reply.text if a.reply is not None else "", a.question
        found.append(
            LabelExample(label.rule, q.id, q.text, label.gold or "", said, dict(a.judgements), label.label)
        )
    return tuple(sorted(found, key=lambda e: e.rule))
