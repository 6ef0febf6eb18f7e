"""Field map of a user's own rows: role -> fields. A role is the meaning of a field, such as query or answer.

Fields are recognised by common names, or the user names them. This row of a user's file

    {"question": "who directed velora?", "answers": ["Anna Lindqvist"],
     "ctxs": [{"title": "Velora", "text": "Velora was directed by Anna Lindqvist."}]}

gives `FieldMap({"query": ("question",), "answer": ("answers",), "documents": ("ctxs",)})`. A dot in a name
means a nested field: `answer=gold.text`. This module works on names and values and opens no files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, DataError

Fields: TypeAlias = str | Mapping[str, str | Sequence[str]]
"""Role -> field or fields: `{"query": "prompt"}`, or `query=prompt` as in the option `--fields`."""

_NAMES = {
    "query": "question query prompt question_text query_text user_input instruction input",
    # If a file has both (as in ragas), `answer` is a system's answer and `ground_truth` the right one.
    "answer": """ground_truths ground_truth gold_answers gold_answer golds gold reference_answer reference
        expected_answer expected_output answers answer correct_answer possible_answers best_answer target
        targets output""",
    "id": "id qid _id question_id query_id example_id uid uuid interaction_id",
    "documents": """documents contexts passages ctxs context retrieved_contexts reference_contexts docs
        passage search_results pages paragraphs paragraph document article story positive_ctxs
        positive_passages pos""",
    "turns": "turns chat_history conversation_history",
    "time": "query_time asked_at",
    "domain": "domain category topic",
    "question_type": "question_type",
    "where": "where",
    "made_by": "made_by",
    "review": "review",
    "url": "url page_url link uri",
    "title": "title page_name page_title doc_title document_title",
    "html": "html page_result page_html raw_html",
    "text": """text content contents page_content passage_text paragraph_text document_text chunk sentences
        passage page_snippet snippet search_context""",
    "path": "path file file_path filename",
    "modified": "modified last_modified page_last_modified fetched_at crawled_at",
}
NAMES: Mapping[str, Sequence[str]] = {role: names.split() for role, names in _NAMES.items()}
"""Role -> common names of its field, the preferred name first. Case, `_`, `-` and spaces are ignored. The
roles from `url` on belong to a document: an object in `documents`, or the row itself."""

_OF_QUESTION = "query answer id documents turns time where domain question_type made_by review"
OF_QUESTION = _OF_QUESTION.split()  # in the order in which these roles claim fields
OF_DOCUMENT = ("url", "title", "html", "text", "path", "modified")
CONTENT = ("html", "text", "path")  # an object with one of these roles is a document
EXTRA: Mapping[str, tuple[str, ...]] = {
    "answer": ("alt_ans", "alternative_answers", "answer_aliases", "aliases"),
    "documents": ("hard_negative_ctxs", "negative_ctxs", "negative_passages", "neg"),
}
"""Role -> names of fields whose values are added to the recognised field's. Only these roles may have several
fields. If the user names the fields of a role, as in `answer=a+b`, only the named fields count."""


@dataclass(frozen=True, slots=True)
class FieldMap:
    """Map of one file's fields, by role."""

    fields: Mapping[str, tuple[str, ...]]
    inner: Mapping[str, str] = field(default_factory=dict)  # role -> user's field in objects of `documents`
    named: frozenset[str] = frozenset()  # roles that the user named; the others come from common names

    def get(self, row: Mapping[str, Any], role: str) -> Any:
        names = self.fields.get(role, ())
        return lookup(row, names[0])[1] if names else None

    def all(self, row: Mapping[str, Any], role: str) -> list[Any]:
        """Returns the values of all fields of a role, except null and missing values."""
        found = (lookup(row, name)[1] for name in self.fields.get(role, ()))
        return [value for value in found if value is not None]

    def asks(self) -> bool:
        return "query" in self.fields


def parse(text: str) -> dict[str, tuple[str, ...]]:
    """Parses the option `--fields` to role -> fields. Raises ConfError if it is malformed.

    >>> parse("query=prompt, answer=gold+aliases")
    {'query': ('prompt',), 'answer': ('gold', 'aliases')}
    >>> parse("question=frage")
    {'query': ('frage',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        role, sign, names = (p.strip() for p in part.partition("="))
        if not sign or not names:
            raise ConfError(f"--fields: expected ROLE=FIELD, such as query=question, found {part!r}")
        if role not in NAMES:  # a common name of a role's field, such as question for query
            role = next((r for r, common in NAMES.items() if role in common), role)
        if role in found:
            raise ConfError(f"--fields: {role} is named twice; expected {role}=FIELD once")
        found[role] = tuple(filter(None, map(str.strip, names.split("+"))))
    if not found:
        raise ConfError(f"--fields: expected ROLE=FIELD,..., such as query=question, found {text!r}")
    return checked(found)


def checked(fields: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Checks and copies `fields`. Raises ConfError if a role is unknown, or has no field or too many."""
    for role, names in fields.items():
        if role not in NAMES:
            raise ConfError(f"--fields: {role!r} is no role; {did_you_mean(role, NAMES)}")
        if not names or (len(names) > 1 and role not in EXTRA):
            raise ConfError(f"--fields: {role}={'+'.join(names)}: expected one field for {role}")
    return dict(fields)


def find(where: str, rows: Sequence[Mapping[str, Any]], named: Mapping[str, tuple[str, ...]]) -> FieldMap:
    """Maps roles to the fields of a file, given its first rows. A role gets the user's `named` fields, else a
    field with a common name. `named` fields that no row has are ignored, since another file may have them
    (see `missing`); their roles get no common name either. Raises DataError, which lists the file's fields,
    if no field holds a question or a document."""
    seen = columns(rows)
    fields = {
        r: tuple(n for n in names if any(lookup(row, n)[0] for row in rows)) for r, names in named.items()
    }
    fields = {role: names for role, names in fields.items() if names}
    taken = {n for names in fields.values() for n in names}

    for role in (*OF_QUESTION, *OF_DOCUMENT):
        if role not in ("query", "id", *OF_DOCUMENT) and "query" not in fields:
            continue  # only questions have this role
        if role == "path" and "query" in fields:
            continue  # a question's field `file` seldom names a document to read
        if role not in named and (name := by_name(role, seen, taken)):
            others = {folded(n): n for n in seen if n not in taken}
            extra = [others[f] for n in EXTRA.get(role, ()) if (f := folded(n)) in others]
            fields[role] = (name, *extra)
            taken.update(fields[role])
    places = fields.get("documents", ())
    nested = {r: n[0] for r, n in named.items() if r in OF_DOCUMENT and r not in fields}
    inner = {role: name for role, name in nested.items() if _nested(rows, places, name)}
    found = FieldMap(fields, inner, frozenset(named.keys() & (fields.keys() | inner.keys())))
    if not found.asks() and not any(role in fields for role in CONTENT):
        expected = "expected a field with the question, or with the text of a document"
        known = f"(names that are found: {', '.join(NAMES['query'][:4])}, ...)"
        mend = f"Name it: --fields query=FIELD,answer=FIELD,documents=FIELD {known}"
        raise DataError(f"{where}: {expected}; found the fields {listed(seen)}.\n{mend}")
    return found


def missing(named: Mapping[str, tuple[str, ...]], files: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Raises ConfError if a field that the user named is in no file. `files` maps a file to its first rows. A
    document's field may also be within a row's field: in an object there, or in a list of objects."""
    rows = [row for some in files.values() for row in some]
    seen = columns(rows)
    for role, names in named.items():
        for name in names:
            inner = role in OF_DOCUMENT and _nested(rows, seen, name)
            if inner or any(lookup(row, name)[0] for row in rows):
                continue
            said = did_you_mean(name, seen)
            hint = f"{said} " if said.startswith("did") else ""
            where = f"--fields {role}={'+'.join(names)}: no field {name!r} in {', '.join(files)}"
            raise ConfError(f"{where}; {hint}its fields: {listed(seen)}")


def _nested(rows: Sequence[Mapping[str, Any]], places: Iterable[str], name: str) -> bool:
    given = (lookup(row, place)[1] for row in rows for place in places)
    items = (item for one in given for item in (one if isinstance(one, list) else [one]))
    return any(isinstance(item, Mapping) and name in item for item in items)


def by_name(role: str, seen: Iterable[str], taken: Iterable[str] = ()) -> str | None:
    """Returns the field of `seen`, not in `taken`, with the most preferred name of a role, or None."""
    plain: dict[str, str] = {}
    for name in seen:
        if name not in set(taken):
            plain.setdefault(folded(name), name)
    return next((plain[folded(n)] for n in NAMES[role] if folded(n) in plain), None)


def folded(name: str) -> str:
    """Normalises a name: drops case, `_`, `-` and spaces.

    >>> folded("Question-Text") == folded("question_text")
    True
    """
    return re.sub(r"[\s_-]", "", name).lower()


def lookup(row: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    """Returns whether a row has a field, and the field's value.

    If no field has the whole name, the part before its first dot names an object, and the rest a field in it.

    >>> lookup({"a": {"b": 1}}, "a.b"), lookup({"a": None}, "a.b")
    ((True, 1), (False, None))
    """
    if name in row:
        return True, row[name]
    head, dot, rest = name.partition(".")
    inner = row.get(head)
    return lookup(inner, rest) if dot and isinstance(inner, Mapping) else (False, None)


def columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(name) for row in rows for name in row))


SHOWN = 30  # most fields that a message lists


def listed(names: Sequence[str]) -> str:
    """Formats names for a message: the first SHOWN, and their number if there are more."""
    more = f", ... ({len(names)} in all)" if len(names) > SHOWN else ""
    return ", ".join(n[:60] or "'' (no name)" for n in names[:SHOWN]) + more or "none"
