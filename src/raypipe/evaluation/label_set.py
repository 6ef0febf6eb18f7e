"""Judged answers to a set of training labels: people's corrections, splits, the share of abstentions.

Pure; knows `training_labels` and the label files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import digest
from raypipe.evaluation.label_files import Label, Split
from raypipe.evaluation.leaks import groups
from raypipe.evaluation.training_labels import PATHS, WHY, JudgedAnswer, Unlabelled
from raypipe.metrics.textfile import TextLine, filled, write_json_lines
from raypipe.text.fitted_on import part_of
from raypipe.text.replies import abstains

EXAMPLES = 2  # of each path that are shown
_PARTS = 1000  # of which a share of questions is held out


@dataclass(frozen=True, slots=True)
class MixLine:
    """The labels of one domain."""

    domain: str  # "": the data names none
    labels: int
    rules: Mapping[str, int]  # rule -> labels
    idk: float  # share of labels that say "i don't know", 0..1


@dataclass(frozen=True, slots=True)
class LabelPath:
    """One path through the rules, or a reason for no label."""

    rule: str  # "": no label
    why: str  # the reason for no label; "": there is one
    questions: int


@dataclass(frozen=True, slots=True)
class LabelExample:
    """One question on its path, for people."""

    rule: str
    id: str
    query: str
    gold: str
    reply: str  # of the step; "": it was not asked
    judgements: Mapping[str, str]  # what the judge said
    label: str


def labels_from(
    judged: Sequence[JudgedAnswer], reviewed: Mapping[str, str], held_out: float, idk_share: float | None
) -> tuple[Label, ...]:
    """The labels, in the order of the questions.

    `reviewed`: question id -> label that a person gave, which outranks the rules. `held_out`: share of
    questions whose split is held-out; near duplicates are on one side. `idk_share`: the share of train rows
    that says "i don't know", reached by leaving rows out; None: as it comes.
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
    """Question id -> its split, of id -> text."""
    parts = {id: part_of(first, _PARTS, "held-out") for id, first in groups(questions).items()}
    return {id: "held-out" if part < held_out * _PARTS else "train" for id, part in parts.items()}


def mixed(labels: Sequence[Label], idk_share: float | None) -> tuple[Label, ...]:
    """The labels with `idk_share` of the train rows saying "i don't know": rows of the larger kind are left
    out, chosen by the digest of their ids, so a smaller share keeps part of what a larger one had. Raises
    DataError where one kind is missing that the share wants."""
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
    """Raises DataError where training on these could only teach one reply: no train rows, rows of calls that
    are all one text, or labels of one kind alone, answers, "i don't know" or "invalid question"."""
    train = [x.label for x in labels if x.split == "train"]
    if not train:
        whys = Counter(WHY[a.why] for a in judged if a.why is not None)
        reasons = "".join(f"; {n}: {why}" for why, n in whys.most_common())
        raise DataError(
            f"labels: expected train rows, found none of {len(judged)} questions{reasons}. Lower --held-out, "
            "or label more questions"
        )
    kinds = Counter([_kind(x) if by_rules else x for x in train])
    if len(kinds) < 2:
        only = next(iter(kinds))
        raise DataError(
            f"labels: expected labels of more than one kind, found {len(train)} of {only!r} alone: a model "
            "that is trained on these says nothing else. Take questions that the step answers rightly and "
            "others that it cannot answer, or another --idk-share"
        )


def _kind(label: str) -> str:
    if abstains(label):
        return "i don't know"
    return "invalid question" if "invalid" in label.lower() else "answer"


def mix_of(labels: Sequence[Label]) -> tuple[MixLine, ...]:
    """The label mix by domain, then of all."""
    domains = sorted({x.domain or "" for x in labels})
    shown = [(d, [x for x in labels if (x.domain or "") == d]) for d in domains]
    out = []
    for domain, some in [*shown, ("all", list(labels))]:
        rules = dict(sorted(Counter[str](x.rule for x in some).items()))
        idk = sum(abstains(x.label) for x in some)
        out.append(MixLine(domain, len(some), rules, idk / max(len(some), 1)))
    return tuple(out)


def paths_of(judged: Sequence[JudgedAnswer], reviewed: Mapping[str, str]) -> tuple[LabelPath, ...]:
    """How many questions took each path, rules first; those of no questions, too."""
    rules = Counter("imported" if a.question.id in reviewed else a.rule for a in judged)
    whys = Counter[Unlabelled](a.why for a in judged if a.why is not None and a.question.id not in reviewed)
    found = [LabelPath(r, "", rules.get(r, 0)) for r in PATHS if r != "imported" or reviewed]
    return (*found, *(LabelPath("", w, n) for w, n in sorted(whys.items())))


def examples_of(judged: Sequence[JudgedAnswer], labels: Sequence[Label]) -> tuple[LabelExample, ...]:
    """The first questions of each path."""
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


def write_review(path: Path, judged: Sequence[JudgedAnswer], into: str) -> int:
    """Writes what a person may correct, a line for each question with a reply. Raises DataError for a file
    that is there: it may hold corrections."""
    if path.exists():
        raise DataError(
            f"{path}: expected no file there, since it may hold corrections. Name another --review"
        )
    return write_json_lines(path, (_review_line(a, into) for a in judged if a.chat))


def _review_line(answer: JudgedAnswer, into: str) -> dict[str, Any]:
    said = answer.reply.text if answer.reply is not None else ""
    return {
        "id": answer.question.id,
        "query": answer.question.text,
        "query_time": answer.question.asked_at,
        "golds": list(answer.gold.answers) if answer.gold is not None else [],
        into: said,
        **answer.judgements,
        "rule": answer.rule,
        "label": answer.label or said,
        "use": False,
        **({"gave": answer.facts} if answer.facts else {}),
    }


def read_review(path: Path) -> dict[str, tuple[str, TextLine]]:
    """Question id -> the label that a person gave it, of the lines marked `"use": true`, and its line. Raises
    DataError."""
    found: dict[str, tuple[str, TextLine]] = {}
    for line in filled(path):
        tree = line.object()
        if not isinstance(tree.get("id"), str):
            raise line.error("an object with an id", tree)
        if tree.get("use") is not True:
            continue
        if not isinstance(label := tree.get("label"), str) or not label.strip():
            raise line.error("a label that says something", label)
        if tree["id"] in found:
            raise line.error("one line for each question marked to be used", tree["id"])
        found[tree["id"]] = label.strip(), line
    if not found:
        raise DataError(f'{path}: expected lines marked "use": true, found none')
    return found


def require_share(name: str, value: float | None) -> None:
    """Raises ConfError for a share that is none."""
    if value is not None and not 0 <= value < 1:
        raise ConfError(f"{name}: expected a share from 0 up to, not including, 1; found {value:g}")
