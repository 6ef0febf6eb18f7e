"""Commands that make, fetch, read or look at data: download, ingest, parse, questions, examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, console, say
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.evaluation.report.formatting import cut

if TYPE_CHECKING:
    from raypipe.api.data import FirstQuestion, IngestResult, Preview
    from raypipe.api.made_data import MadeQuestionsResult, QuestionsPlan


@command("download", "crag --task 1 /data/crag", keeps=True)
def download(
    session: Session,
    what: Literal["crag", "qasper"] = arg("whose files", needed=True),
    folder: Path = arg("folder for the files", "DIR", needed=True),
    *,
    task: Literal["1", "3"] | None = arg("for crag: 1 has 5 pages a question (0.7 GB), 3 has 50 (7.7 GB)"),
    version: Literal["v4", "v5"] | None = arg("version of crag: v5 adds popularity labels (v4)"),
) -> int:
    if what == "qasper":
        if task or version:
            raise ConfError("--task and --version: expected only with crag; qasper has one set of files")
        files = raypipe.download_qasper(folder, session)
    elif task is None:
        raise ConfError("--task: expected 1 or 3 with crag, found none")
    else:
        files = raypipe.download_crag(folder, task, version or "v4", session)
    for file in files:
        print(file)
    return 0


@command("ingest", "faq.parquet --fields query=prompt,answer=gold --store /data/store --dry-run", keeps=True)
def ingest(
    paths: Sequence[str] = arg("files, folders or URIs", "PATH", needed=True),
    *,
    format: str | None = shared.FILES_FORMAT,
    fields: str | None = shared.FIELDS,
    kind: str | None = shared.KIND,
    globs: Sequence[str] = arg(
        "with --format files: read only these, such as '*.pdf'; '!old/*' excludes",
        "PATTERN",
        flag="--glob",
        each=True,
    ),
    dry_run: bool = arg("show the fields that are found and the first row, store nothing"),
    place: shared.StoreFlags,
    session: Session = shared.session("cluster"),
) -> Shown[Any]:
    if not dry_run:
        store = place.uri(session)
        return Shown(raypipe.ingest(paths, store, format, session, fields, globs, kind), _print_read)
    if format == "files":
        raise ConfError("--dry-run shows the fields of rows: expected without --format files")
    found = raypipe.preview(paths, format, fields, session)
    return Shown(found, lambda found: _print_preview(found, named=format is not None))


def _print_read(read: IngestResult) -> None:
    print(read.title)
    for name, count in read.summary.counts.items():
        if count:
            print(f"  {name.replace('_', ' '):<24} {count}")
    for reason, count in read.summary.reasons.items():
        print(f"  omitted, {reason.replace('_', ' '):<15} {count}")
    for rows in read.summary.replaced:
        print(rows.sentence())
    if read.bad:
        print("the first of them:")
    for bad in read.bad:
        print(f"  {bad}")


CHARS = 90  # characters shown of a value
DOCUMENTS = 3  # documents shown of a question


def _print_preview(found: Preview, named: bool) -> None:
    """Prints the format, the fields of each file, and the first row. `named`: the user named the format."""
    from raypipe.evaluation.report.console import say

    out = console()
    how = "as named" if named else "detected; --format names another"
    say(out, f"read as {found.data_format} ({how})", style="bold", fold=True)
    for file in found.files:
        say(out, file.file)
        for role, names in file.fields.items():
            how = " (named)" if role in file.named else ""
            say(out, f"  {role:<14}{' + '.join(names)}{how}")
        if file.unused:
            say(out, f"  {'not read':<14}{', '.join(file.unused)}")
    firsts = {} if found.question is None else {"question": list(_question(found.question))}
    if (d := found.document) is not None:
        text = f"{d.chars:,} characters: {_cut(d.text)}"
        firsts["document"] = [("id", d.id), ("title", d.title or "none"), ("text", text)]
    for what, lines in firsts.items():
        say(out, f"the first {what}", style="bold", fold=True)
        width = max(len(name) for name, _ in lines) + 1
        below = "\n" + " " * (width + 2)
        say(out, *(f"  {name:<{width}}{value.replace(chr(10), below)}" for name, value in lines))
    for bad in found.bad_lines:
        say(out, f"  {bad}")
    out.print("nothing was stored; without --dry-run the files are read into the store")


def _question(found: FirstQuestion) -> Iterator[tuple[str, str]]:
    yield "query", _cut(found.query)
    answers = found.answers
    shown = " | ".join(map(_cut, answers[:5])) + (f" | ... ({len(answers)} in all)" if answers[5:] else "")
    yield "answer", shown or "none: what is answered is not scored"
    yield "id", found.id
    if found.asked_at:
        yield "time", found.asked_at
    yield from found.labels.items()
    documents = found.documents
    if found.searches_store:
        yield "documents", "no field of documents: the question searches all that the store holds"
    elif not documents:
        yield "documents", "none: the question has nothing to search"
    for number, d in enumerate(documents[:DOCUMENTS], 1):
        named = ", ".join(filter(None, (d.kind, f"{d.chars:,} characters", d.title, d.url)))
        yield f"document {number}", f"{named}: {_cut(d.text)}"
    if len(documents) > DOCUMENTS:
        yield "", f"and {len(documents) - DOCUMENTS} more"


def _cut(text: str) -> str:
    """Joins the lines of a text, and cuts it to CHARS characters."""
    return cut(" ".join(text.split()), CHARS, "...")


@command("parse", "page.html --json")
def parse(
    shell: Shell,
    files: Sequence[str] = arg("HTML files", "FILE", needed=True),
    *,
    json: bool = arg("print one JSON object a line on stdout and nothing else"),
) -> int:
    failed = 0
    for page in raypipe.parse_html(files):
        failed += page.fault is not None
        if json:
            shell.print_json(page.to_dict())
        elif page.fault:
            say(f"raypipe parse: {page.file}: {page.fault.reason}: {page.fault.detail}")
        else:
            print(page.text)
    return 3 if failed else 0


@command(
    "questions", "/data/handbook --llm http://127.0.0.1:8000/v1#MODEL --n 200 --store /data/store", keeps=True
)
def questions(
    shell: Shell,
    documents: Sequence[str] = arg("documents to read into the store first (default: none)", "PATH"),
    *,
    format: str | None = shared.FILES_FORMAT,
    fields: str | None = shared.FIELDS,
    place: shared.StoreFlags,
    session: Session = shared.session("models", "llm"),
    n: int = arg("number of questions to make (200)", "N", shared.whole(1), default=200),
    seed: int = arg("seed that draws the passages (1)", "S", default=1),
    out: str = arg("file for the questions, as rows (questions.jsonl)", "FILE", default="questions.jsonl"),
    dry_run: bool = arg("print the number of calls, make nothing"),
) -> Shown[Any]:
    store, tell = place.uri(session), (lambda plan: None) if shell.json else _print_plan
    made = raypipe.make_questions(out, documents, n, store, seed, format, fields, dry_run, tell, session)
    return Shown(made, _print_made)


def _print_made(made: MadeQuestionsResult) -> None:
    """Prints the questions that were made; nothing for a dry run."""
    from raypipe.evaluation.report.console import say
    from raypipe.text.made_questions import REASONS

    if made.out is None:
        return
    out = console()
    kinds = ", ".join(f"{kind} {n}" for kind, n in made.kinds.items())
    say(out, f"{len(made.kept)} questions of {made.plan.wanted} wanted ({kinds})", style="bold")
    for q in made.first():
        say(out, f"  {q['question_type']}: {q['question']}", f"    {' | '.join(q['answers'])}")
        for e in q["evidence"]:
            say(out, f"    \u201c{e['quote']}\u201d ({e['title'] or e['document'] or e['source'][:8]})")
    if made.rejected:
        rejected = sorted(made.rejected.items(), key=lambda r: (-r[1], r[0]))
        total = f"{sum(made.rejected.values())} of {made.written} written were rejected:"
        say(out, total, *(f"  {n:>5}  {REASONS[reason]}" for reason, n in rejected), fold=True)
    say(out, f"calls: {made.computed} computed, {made.cached} cached", fold=True)
    review = '`"review": "drop"` is not read, one with keep is marked as reviewed'
    then = f"raypipe eval RECIPE --data {made.out} --store {made.plan.store}"
    say(out, f"review {made.out}: a line with {review}. Then: {then}")


def _print_plan(plan: QuestionsPlan) -> None:
    print(
        f"at most {plan.max_calls:,} calls of {plan.model}: {plan.candidates:,} questions are written "
        f"({plan.cached:,} of them cached) and checked, until {plan.wanted:,} are kept; passages of "
        f"{plan.documents:,} documents in {plan.store}"
    )
    if plan.unreadable:
        print(f"{plan.unreadable:,} more documents have no text, or no passage of prose")


@command("examples", "qasper/qasper-train-v0.3.json --out qasper/train.jsonl", keeps=True)
def examples(
    data: Sequence[str] = arg("questions with answers", "PATH", needed=True),
    *,
    format: str | None = shared.FORMAT,
    fields: str | None = shared.FIELDS,
    out: str = arg("the pool: .jsonl or .jsonl.gz", "FILE", needed=True),
    explain: str | None = arg("generator that explains each answer; the pool has the explanations", "MODEL"),
    session: Session = shared.session("models", "llm", "cluster"),
) -> Shown[Any]:
    use = f"use it with --graph NAME={out}, NAME being the pool's name in the recipe"
    made = raypipe.build_examples(data, out, explain, format, session, fields)
    return Shown(made, lambda made: print(made.title, use, sep="\n"))
