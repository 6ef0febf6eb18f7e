"""Parsers of language models' replies. Pure functions, independent of models and metrics.

If a reply is blank or has another form, most parsers raise `UnreadableReply` with the expected form. Some
fall back instead: `parse_response` to the score -1, `read_rewrite` to the question, `read_label` and
`read_certainty` to a default label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from raypipe.core.records import ABSTAINED, ANSWERED, IDK, INVALID, INVALID_QUESTION, Label

UNREADABLE = "Parse Err: Score not found"

_GROUP = re.compile(r"\{[^}]*+\}?")  # an unclosed group is ignored
_SCORE = re.compile(r'"score"\s*:\s*(\d+)')
_EXPLAINED = re.compile(r'"explanation"\s*:\s*"')
_EXPLANATION_END = re.compile(r'"\s*(?:,\s*"score"|\}$)')


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """Verdict of CRAG's judge on one prediction."""

    explanation: str  # its reason, else its `{...}`; for an unreadable verdict UNREADABLE or the response
    score: Literal[-1, 0, 1]  # 1 right, 0 wrong, -1 cannot be read


def parse_response(response: str) -> JudgeReply:
    """Parses a judge's verdict as CRAG's evaluator does: from the last `{...}` that has no inner `}`. The
    score is -1 if there is no score, or one other than 0 and 1.

    >>> parse_response('{"score": 0, "explanation": "no"} {"score": 1, "explanation": "ok"}')
    JudgeReply(explanation='ok', score=1)
    """
    groups = [group for group in _GROUP.findall(response) if group[-1] == "}"]
    text = groups[-1] if groups else ""
    if (found := _SCORE.search(text)) is None:
        return JudgeReply(UNREADABLE, -1)
    if (digits := found[1].lstrip("0")) not in ("", "1"):
        return JudgeReply(response, -1)
    explanation = ""
    if (begin := _EXPLAINED.search(text)) is not None:
        # The explanation is on one line. Judges forget to escape its quotes, so it ends at the quote before
        # the score, or else at the last quote.
        line = text[begin.end() :].partition("\n")[0]
        end = _EXPLANATION_END.search(text, begin.end() + 1)
        size = end.start() - begin.end() if end else len(line)
        explanation = line[: size if size < len(line) else max(line.rfind('"'), 0)]
    return JudgeReply(explanation or text, 1 if digits else 0)


Level: TypeAlias = Literal["low", "medium", "high"]
LEVELS: tuple[Level, ...] = get_args(Level)
CONFIDENCE: dict[Level, float] = {"low": 0.0, "medium": 0.5, "high": 1.0}
"""Stated level -> `Reply.confidence`. The numbers only rank levels; they are no probabilities."""

_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})
# A call may follow a number: 3get_X(. The possessive pattern scans each word once.
_CALL = re.compile(r"(?<!\w)(?=\w*?(?<![a-z_])get_\w)\w++\s*+\(", re.IGNORECASE)
_NO_CALL = re.compile(r"(none[\s,;]*)+", re.IGNORECASE)  # the grammar allows "None" on every line


class UnreadableReply(Exception):
    """Error of a reply in an unexpected form; the message states the expected form."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    text: str
    label: Label
    confidence: float | None = None  # see CONFIDENCE


def abstains(text: str) -> bool:
    """Returns whether a text contains "i don't know", in any case, with a straight or curly apostrophe.

    >>> abstains("Well, I don\u2019t know that.")
    True
    """
    return IDK in text.translate(_APOSTROPHES).lower()


def read_plain(text: str) -> ParsedReply:
    """Reads an answer in plain words. An answer that contains "invalid question" has the label invalid.

    An answer that contains "i don't know" becomes exactly this text, as in the system db3.

    >>> read_plain("Sorry, I don't know."), read_plain(" Paris. ").label
    (ParsedReply(text="i don't know", label='abstained', confidence=None), 'answered')
    """
    said = read_text(text, "an answer").text
    if abstains(said):
        return ParsedReply(IDK, ABSTAINED)
    return ParsedReply(said, INVALID if INVALID_QUESTION in said.lower() else ANSWERED)


KEPT = "kept"
"""Label of a reply that is the question itself, because no rewrite of a model or rule replaced it."""


def read_rewrite(text: str, question: str) -> ParsedReply:
    """Reads a query that replaces a question. Returns the question if the text is empty or longer than it.

    >>> read_rewrite(" seed  lexicon ", "What is the seed lexicon?").text
    'seed lexicon'
    >>> read_rewrite("What is it that the seed lexicon is?", "What is the seed lexicon?").label
    'kept'
    """
    said = " ".join(text.split())
    shorter = 0 < len(said) <= len(question)
    return ParsedReply(said, ANSWERED) if shorter else ParsedReply(question, KEPT)


def behind(text: str, mark: str) -> str:
    """Returns the text after the last `mark`, or the whole text if `mark` is "".

    Raises UnreadableReply if the mark is missing.

    >>> behind("It says so. Answer: Yes", "Answer:").strip()
    'Yes'
    """
    _, found, rest = text.rpartition(mark) if mark else ("", "-", text)
    if not found:
        raise UnreadableReply(f"expected {mark!r} before the answer")
    return rest


def read_label(text: str, labels: Sequence[str], default: str | None) -> ParsedReply:
    """Reads the label: the first of `labels` that occurs anywhere in the text, in any case (db3's rule).

    If none occurs, the label is the default. Raises UnreadableReply if the default is None, too.

    >>> read_label("Movie, perhaps music", ("finance", "music", "movie"), "open").label
    'music'
    """
    said = text.strip()
    if (found := next((label for label in labels if label.lower() in said.lower()), default)) is None:
        raise UnreadableReply(f"expected one of {', '.join(labels)}")
    return ParsedReply(said, found)


def read_text(text: str, what: str = "a text") -> ParsedReply:
    """Reads any text, such as a passage to search with. It never counts as an abstention. The error for a
    blank text says that `what` was expected.

    >>> read_text(" Why it scales, I don't know. ").label
    'answered'
    """
    if not (said := text.strip()):
        raise UnreadableReply(f"expected {what}, found only white space")
    return ParsedReply(said, ANSWERED)


def placed(place: str, chunk: str) -> str:
    """Puts `place`, a model's line about the chunk's place in its document, above the chunk.

    >>> placed("Of the manual,  its end.", "It lasts a year.")
    'Of the manual, its end.\\nIt lasts a year.'
    """
    return f"{' '.join(place.split())}\n{chunk}"


_KEYWORDS = re.compile(r"keywords|:", re.IGNORECASE)
_BULLET = re.compile(r"^(?:[-*\u2022]|\d{1,2}[.)])\s+")


def read_keywords(text: str) -> ParsedReply:
    """Joins the lines of a text by commas, as the system Onewo does, without bullets, colons and "keywords".

    >>> [read_keywords(t).text for t in ("Keywords: graph nets, sampling", "- graph nets\\n- sampling\\n")]
    ['graph nets, sampling', 'graph nets, sampling']
    """
    lines = (_BULLET.sub("", line.strip(), count=1) for line in text.splitlines())
    folded = (" ".join(_KEYWORDS.sub(" ", line).split()).strip(",;* ") for line in lines)
    said = ", ".join(line for line in folded if line)
    if not said:
        raise UnreadableReply("expected keywords, found none")
    return ParsedReply(said, ANSWERED)


def read_json(text: str) -> ParsedReply:
    """Reads the JSON object in a text and drops all other text. Raises UnreadableReply without an object."""
    return ParsedReply(json.dumps(json_object(text), ensure_ascii=False, separators=(",", ":")), ANSWERED)


def read_confidence(text: str, wanted: Level | None) -> ParsedReply:
    """Reads `{"answer": ..., "confidence": "high"}`, the form of the system WeKnow.

    A missing or unknown confidence counts as low. An answer below the level `wanted` becomes an abstention.

    >>> read_confidence('{"answer": "1999", "confidence": "medium"}', "high")
    ParsedReply(text="i don't know", label='abstained', confidence=0.5)
    """
    tree = json_object(text)
    answer = tree.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(answer, str):
        raise UnreadableReply('expected a JSON object with "answer" as text')
    stated = tree.get("confidence")
    level: Level = next((x for x in LEVELS if isinstance(stated, str) and stated.strip().lower() == x), "low")
    said = read_plain(answer)
    if wanted is not None and CONFIDENCE[level] < CONFIDENCE[wanted]:
        said = ParsedReply(IDK, ABSTAINED)
    return ParsedReply(said.text, said.label, CONFIDENCE[level])


def read_certainty(text: str, labels: Sequence[str], certain: float, default: str) -> ParsedReply:
    """Reads `{"domain": ..., "certainty": 0 to 100, "invalid": true or false}`, the form of WeKnow.

    The label is INVALID if "invalid" is true. It is the domain if that is one of `labels` and its certainty
    is more than `certain`. Otherwise, and for a text without a JSON object, it is the default.

    >>> said = '{"domain": "movie", "certainty": %s}'
    >>> [read_certainty(said % n, ("movie", "music"), 90, "open").label for n in (90, 91)]
    ['open', 'movie']
    """
    said = text.strip()
    try:
        tree = json_object(said)
    except UnreadableReply:
        return ParsedReply(said or default, default)
    if tree.get("invalid") is True:
        return ParsedReply(said, INVALID)
    domain, certainty = tree.get("domain"), tree.get("certainty")
    sure = isinstance(certainty, int | float) and not isinstance(certainty, bool) and certainty > certain
    known = isinstance(domain, str) and domain.strip().lower() in labels
    return ParsedReply(said, str(domain).strip().lower() if sure and known else default)


def read_calls(text: str) -> ParsedReply:
    """Reads a program of calls to a knowledge graph, without parsing it. "None" (no call fits) abstains.

    >>> programs = ('ALL 3get_movie("velora")["year"]', "None", "None\\nNone; none")
    >>> [read_calls(program).label for program in programs]
    ['answered', 'abstained', 'abstained']
    """
    said = text.strip().removeprefix("```").removesuffix("```").strip()
    if _NO_CALL.fullmatch(said):
        return ParsedReply(said, ABSTAINED)
    if not _CALL.search(said):
        raise UnreadableReply("expected lines of get_X(...) calls, or None")
    return ParsedReply(said, ANSWERED)


MOST_QUERY_CHARS = 300
"""Most characters of a query for another search. The longest question of SQuAD, NQ and CRAG has 197."""

_BEFORE = r"^(?>(?:[^\S\n]|[>*#-])*)"  # marks of a list or heading
_SEARCH = re.compile(rf"{_BEFORE}search\s*:(.*)$", re.IGNORECASE | re.MULTILINE)
_ENOUGH = re.compile(rf"{_BEFORE}enough\b", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(r"\d+")


def read_next_query(text: str) -> str | None:
    """Reads the next query from "Search: QUERY"; returns None for "Enough". The first of the two wins. Raises
    UnreadableReply if neither is found, or if the query has more than MOST_QUERY_CHARS characters.

    >>> read_next_query("The film is named. Its maker is not.\\nSearch: director of Velora")
    'director of Velora'
    >>> read_next_query("ENOUGH.") is None
    True
    """
    search, enough = _SEARCH.search(text), _ENOUGH.search(text)
    if enough is not None and (search is None or enough.start() < search.start()):
        return None
    query = "" if search is None else search[1].strip().strip("\"'").strip()
    if not query:
        raise UnreadableReply('expected "Enough", or "Search: " and a query')
    if (length := len(query)) > MOST_QUERY_CHARS:
        raise UnreadableReply(f"expected a query of at most {MOST_QUERY_CHARS} characters, found {length}")
    return query


def read_numbers(text: str, most: int) -> tuple[int, ...]:
    """Reads the distinct numbers from 1 to `most` in a text, in order; () for "none". Ignores other numbers.

    >>> read_numbers("[3], then 1 and 3; 99", 5)
    (3, 1)
    """
    found = dict.fromkeys(n for m in _NUMBER.findall(text) if len(m) < 10 and 1 <= (n := int(m)) <= most)
    if not found and not text.strip().lower().startswith("none"):
        raise UnreadableReply(f"expected numbers from 1 to {most}, or none")
    return tuple(found)


def json_object(text: str) -> dict[str, Any]:
    """Parses the JSON object from a text's first brace to its last. Raises UnreadableReply without one."""
    start, end = text.find("{"), text.rfind("}")
    try:
        tree = json.loads(text[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError) as e:
        raise UnreadableReply(f"expected a JSON object: {e}") from e
    if not isinstance(tree, dict):
        raise UnreadableReply("expected a JSON object, found none")
    return tree
