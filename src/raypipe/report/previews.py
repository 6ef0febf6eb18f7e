"""How files would be read, on a console (`raypipe ingest --dry-run`). Text from data is printed as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

CHARS = 90  # of a value that is shown
DOCUMENTS = 3  # of a question, that are shown


def print_preview(console: Console, found: Mapping[str, Any], named: bool) -> None:
    """The format, the fields of each file, and the first row. `named`: the user named the format."""
    how = "as named" if named else "by its looks; --format names another"
    console.print(Text(f"read as {found['data_format']} ({how})", "bold"))
    for file in found["files"]:
        console.print(Text(file["file"]), soft_wrap=True)
        for role, names in file["fields"].items():
            how = " (named)" if role in file["named"] else ""
            console.print(Text(f"  {role:<14}{' + '.join(names)}{how}"), soft_wrap=True)
        if file["unused"]:
            console.print(Text(f"  {'not read':<14}{', '.join(file['unused'])}"), soft_wrap=True)
    for what in ("question", "document"):
        if found[what]:
            console.print(Text(f"the first {what}", "bold"))
            lines = _question(found[what]) if what == "question" else _document(found[what])
            for name, value in lines:
                console.print(Text(f"  {name:<14}{value}"), soft_wrap=True)
    for bad in found["bad_lines"]:
        reason = bad["reason"].replace("_", " ")
        console.print(Text(f"  {bad['where']}: {reason}: {bad['detail']}"), soft_wrap=True)
    console.print("nothing was stored; without --dry-run the files are read into the store")


def _question(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "query", _cut(found["query"])
    yield "answer", _several(found["answers"]) or "none: such a question is answered and not scored"
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


def _several(texts: Sequence[str]) -> str:
    return " | ".join(_cut(t) for t in texts[:5]) + (
        f" | ... ({len(texts)} in all)" if len(texts) > 5 else ""
    )


def _cut(text: str) -> str:
    """A text in one line, its beginning where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= CHARS else f"{line[: CHARS - 3]}..."
