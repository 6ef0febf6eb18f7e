"""Data on a console: how files would be read (`raypipe ingest --dry-run`), and questions that were made. Text
from data is printed as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from raypipe.evaluation.report.console import say
from raypipe.evaluation.report.wording import cut
from raypipe.text.made_questions import REASONS

CHARS = 90  # of a value that is shown
DOCUMENTS = 3  # of a question, that are shown


def print_preview(console: Console, found: Mapping[str, Any], named: bool) -> None:
    """The format, the fields of each file, and the first row. `named`: the user named the format."""
    how = "as named" if named else "by its looks; --format names another"
    say(console, f"read as {found['data_format']} ({how})", style="bold", fold=True)
    for file in found["files"]:
        say(console, file["file"])
        for role, names in file["fields"].items():
            how = " (named)" if role in file["named"] else ""
            say(console, f"  {role:<14}{' + '.join(names)}{how}")
        if file["unused"]:
            say(console, f"  {'not read':<14}{', '.join(file['unused'])}")
    for what, described in (("question", _question), ("document", _document)):
        if found[what]:
            say(console, f"the first {what}", style="bold", fold=True)
            lines = list(described(found[what]))
            width = max(len(name) for name, _ in lines) + 1
            shown = (
                f"{name:<{width}}" + value.replace("\n", "\n" + " " * (width + 2)) for name, value in lines
            )
            say(console, *(f"  {line}" for line in shown))
    for bad in found["bad_lines"]:
        say(console, f"  {bad['where']}: {bad['reason'].replace('_', ' ')}: {bad['detail']}")
    console.print("nothing was stored; without --dry-run the files are read into the store")


def _question(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "query", _cut(found["query"])
    answers = found["answers"]
    shown = " | ".join(map(_cut, answers[:5])) + (f" | ... ({len(answers)} in all)" if answers[5:] else "")
    yield "answer", shown or "none: what is answered is not scored"
    yield "id", found["id"]
    if found["asked_at"]:
        yield "time", found["asked_at"]
    yield from found["labels"].items()
    documents = found["documents"]
    if found["searches_store"]:
        yield "documents", "no field of documents: the question searches all that the store holds"
    elif not documents:
        yield "documents", "none: the question has nothing to search"
    for number, d in enumerate(documents[:DOCUMENTS], 1):
        named = ", ".join(filter(None, (d["kind"], f"{d['chars']:,} characters", d["title"], d["url"])))
        yield f"document {number}", f"{named}: {_cut(d['text'])}"
    if len(documents) > DOCUMENTS:
        yield "", f"and {len(documents) - DOCUMENTS} more"


def _document(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "id", found["id"]
    yield "title", found["title"] or "none"
    yield "text", f"{found['chars']:,} characters: {_cut(found['text'])}"


def _cut(text: str) -> str:
    """A text in one line, its beginning where it is long."""
    return cut(" ".join(text.split()), CHARS, "...")


def print_made(console: Console, made: Mapping[str, Any]) -> None:
    """The result of `raypipe questions`. Text from data is printed as it is."""
    kinds = ", ".join(f"{kind} {n}" for kind, n in made["kinds"].items())
    out, store, wanted = made["out"], made["plan"]["store"], made["plan"]["wanted"]
    say(console, f"{made['questions']} questions of {wanted} wanted ({kinds})", style="bold")
    for q in made["first"]:
        say(console, f"  {q['question_type']}: {q['question']}", f"    {' | '.join(q['answers'])}")
        for e in q["evidence"]:
            say(console, f"    \u201c{e['quote']}\u201d ({e['title'] or e['document'] or e['source'][:8]})")
    if made["rejected"]:
        rejected = sorted(made["rejected"].items(), key=lambda r: (-r[1], r[0]))
        total = f"{sum(made['rejected'].values())} of {made['written']} written were rejected:"
        say(console, total, *(f"  {n:>5}  {REASONS[reason]}" for reason, n in rejected), fold=True)
    say(console, f"calls: {made['computed']} computed, {made['cached']} cached", fold=True)
    say(
        console,
        f'review {out}: a line with `"review": "drop"` is not read, one with keep is marked as reviewed. '
        f"Then: raypipe eval RECIPE --data {out} --store {store}",
    )
