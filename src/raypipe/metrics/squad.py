"""SQuAD's measures of an answer: exact match and token F1, and whether a truth stands in the answer.

Pure functions on text, after the rules that Rajpurkar et al. published with SQuAD 1.1 (2016) and that QASPER
and Natural Questions use: lower case, no ASCII punctuation, no `a`, `an`, `the`, white space squeezed. A link
of Markdown counts as its text, which those rules would make one word with its address. Of several truths the
best counts.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = string.punctuation.encode()
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalized(text: str) -> str:
    """The text as it is compared.

    >>> normalized("The  F1-score, a (U.S.)!")
    'f1score us'
    >>> normalized("See [RFC 8878](https://example.org/rfc8878).")
    'see rfc 8878'
    """
    if "](" in text:
        text = _LINK.sub(r"\1", text)
    # On bytes: no byte of a letter beyond ASCII is one of these, and of a page it takes a tenth of the time.
    plain = text.lower().encode("utf-8", "surrogatepass").translate(None, _PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", plain.decode("utf-8", "surrogatepass")).split())


def exact_match(answer: str, truths: Sequence[str]) -> float:
    """1 where the answer equals a truth, else 0.

    >>> exact_match("The Eiffel Tower.", ["eiffel tower"])
    1.0
    """
    said = normalized(answer)
    return float(any(said == normalized(t) for t in truths))


def token_f1(answer: str, truths: Sequence[str]) -> float:
    """The best F1 of the words that the answer shares with a truth, 0..1.

    Words count as often as they stand in both. No common word is 0, also where both have none.

    >>> token_f1("yes, because x", ["No", "Yes"])
    0.5
    """
    said, found = normalized(answer).split(), [normalized(t).split() for t in truths]
    return max((f1((Counter(said) & Counter(t)).total(), len(said), len(t)) for t in found), default=0.0)


def f1(common: int, said: int, truth: int) -> float:
    if not common:
        return 0.0
    precision, recall = common / said, common / truth
    return 2 * precision * recall / (precision + recall)


def contains(answer: str, truths: Sequence[str]) -> float:
    """1 where the words of a truth stand in the answer, one after the other, else 0. An exact match does.

    >>> contains("It flies for 31 minutes.", ["31 minutes"]), contains("31 long minutes", ["31 minutes"])
    (1.0, 0.0)
    """
    said = f" {normalized(answer)} "
    found = [normalized(t) for t in truths]
    return float(any(said == f" {t} " or (t and f" {t} " in said) for t in found))
