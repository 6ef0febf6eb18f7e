"""Commands that make, fetch, read or look at data: download, ingest, parse, questions, examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, console, say
from raypipe.api.session import Session
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.data import IngestResult
    from raypipe.api.made_data import MadeQuestionsResult, QuestionsPlan


@command("download", "crag --task 1 /data/crag")
def download(
    session: Session,
    what: Literal["crag", "qasper"] = arg("whose files", needed=True),
    folder: Path = arg("folder for the files", "DIR", needed=True),
    *,
    task: Literal["1", "3"] | None = arg(
        "required for crag: 1 has 5 pages a question (0.7 GB), 3 has 50 (7.7 GB)"
    ),
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


@command("ingest", "faq.parquet --fields query=prompt,answer=gold --store /data/store --dry-run")
def ingest(
    shell: Shell,
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
    cluster: str = shared.CLUSTER,
) -> Shown[Any]:
    session = shell.session(cluster=cluster)
    if not dry_run:
        store = place.uri(session)
        return Shown(raypipe.ingest(paths, store, format, session, fields, globs, kind), _print_read)
    if format == "files":
        raise ConfError("--dry-run shows the fields of rows: expected without --format files")
    from raypipe.api.cli.tables import print_preview

    found = raypipe.preview(paths, format, fields, session)
    return Shown(found, lambda found: print_preview(console(), found, named=format is not None))


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


@command("questions", "/data/handbook --llm http://127.0.0.1:8000/v1#MODEL --n 200 --store /data/store")
def questions(
    shell: Shell,
    documents: Sequence[str] = arg("documents to read into the store first (default: none)", "PATH"),
    *,
    format: str | None = shared.FILES_FORMAT,
    fields: str | None = shared.FIELDS,
    place: shared.StoreFlags,
    models: str | None = shared.MODELS,
    llm: str | None = shared.LLM,
    n: int = arg("number of questions to make (200)", "N", shared.whole(1), default=200),
    seed: int = arg("seed that draws the passages (1)", "S", default=1),
    out: str = arg("file for the questions, as rows (questions.jsonl)", "FILE", default="questions.jsonl"),
    dry_run: bool = arg("print the number of calls, make nothing"),
) -> Shown[Any]:
    session = shell.session(models, llm=llm)
    store, tell = place.uri(session), (lambda plan: None) if shell.json else _print_plan
    made = raypipe.make_questions(out, documents, n, store, seed, format, fields, dry_run, tell, session)

    def show(made: MadeQuestionsResult) -> None:
        if made.out is not None:
            from raypipe.api.cli.tables import print_made

            print_made(console(), made)

    return Shown(made, show)


def _print_plan(plan: QuestionsPlan) -> None:
    print(
        f"at most {plan.max_calls:,} calls of {plan.model}: {plan.candidates:,} questions are written "
        f"({plan.cached:,} of them cached) and checked, until {plan.wanted:,} are kept; passages of "
        f"{plan.documents:,} documents in {plan.store}"
    )
    if plan.unreadable:
        print(f"{plan.unreadable:,} more documents have no text, or no passage of prose")


@command("examples", "qasper/qasper-train-v0.3.json --out qasper/train.jsonl")
def examples(
    shell: Shell,
    data: Sequence[str] = arg("questions with answers", "PATH", needed=True),
    *,
    format: str | None = shared.FORMAT,
    fields: str | None = shared.FIELDS,
    out: str = arg("the pool: .jsonl or .jsonl.gz", "FILE", needed=True),
    explain: str | None = arg(
        "generator that explains each answer; the pool stores the explanations", "MODEL"
    ),
    models: str | None = shared.MODELS,
    llm: str | None = shared.LLM,
    cluster: str = shared.CLUSTER,
) -> Shown[Any]:
    use = f"use it with --graph NAME={out}, NAME being the pool's name in the recipe"
    made = raypipe.build_examples(data, out, explain, format, shell.session(models, cluster, llm=llm), fields)
    return Shown(made, lambda made: print(made.title, use, sep="\n"))
