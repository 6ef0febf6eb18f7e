"""Commands that make, fetch, read or look at data: download, ingest, parse, questions, examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import raypipe
from raypipe.api.cli.command import Args, called, command, console, print_json, printed, say
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.data import IngestResult, Preview
    from raypipe.api.made_data import MadeQuestionsResult, QuestionsPlan


@command
def _download(args: Args) -> int:
    """raypipe download crag --task 1 /data/crag
    what {crag|qasper}
    folder DIR {path}
    --task {1|3}: of crag, required: 1: 5 pages a question (0.7 GB); 3: 50 (7.7 GB)
    --version {v4|v5}: of crag: v5 adds popularity labels (v4)
    """
    if args.what == "qasper":
        if args.task or args.version:
            raise ConfError("--task and --version: expected with crag alone; qasper has one set of files")
        files = called(raypipe.download_qasper, args)
    elif args.task is None:
        raise ConfError("--task: expected 1 or 3 with crag, found none")
    else:
        files = called(raypipe.download_crag, args, version=args.version or "v4")
    for file in files:
        print(file)
    return 0


@command
def _ingest(args: Args) -> int:
    """raypipe ingest faq.parquet --fields query=prompt,answer=gold --store /data/store --dry-run
    paths PATH+: files, folders of files, or URIs of some
    files kind
    --glob PATTERN ... {-> globs}: with --format files: read only files whose path in the folder matches, such
      as '*.pdf'; '!old/*' leaves out (may be repeated)
    --dry-run: show the fields that are found and the first row, store nothing
    store cluster json
    """
    if not args.dry_run:
        return printed(args, called(raypipe.ingest, args), _print_read)
    if args.format == "files":
        raise ConfError("--dry-run shows the fields of rows: not with --format files")

    def show(found: Preview) -> None:
        from raypipe.api.cli.tables import print_preview

        print_preview(console(), found, named=args.format is not None)

    return printed(args, called(raypipe.preview, args), show)


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


@command
def _parse(args: Args) -> int:
    """raypipe parse page.html --json
    files FILE+
    --html {lxml|html.parser = lxml}: whose text (default: lxml)
    json-lines
    """
    failed = 0
    for page in raypipe.parse_html(args.files, args.html):
        failed += page.fault is not None
        if args.json:
            print_json(page.to_dict(), args)
        elif page.fault:
            say(f"raypipe parse: {page.file}: {page.fault.reason}: {page.fault.detail}")
        else:
            print(page.text)
    return 3 if failed else 0


@command
def _questions(args: Args) -> int:
    """raypipe questions /data/handbook --llm http://127.0.0.1:8000/v1#MODEL --n 200 --store /data/store
    documents PATH*: documents to read into the store first (default: none)
    files store models llm
    --n N {1.. = 200 -> number}: questions wanted (200)
    --seed S {int = 1}: other passages for other seeds (1)
    --out FILE {= questions.jsonl}: the questions, as rows (questions.jsonl)
    --dry-run: print the number of calls, make nothing
    json
    """
    quiet = (lambda plan: None) if args.json else _print_plan
    return printed(args, called(raypipe.make_questions, args, on_plan=quiet), _print_made)


def _print_made(made: MadeQuestionsResult) -> None:
    if made.out is not None:
        from raypipe.api.cli.tables import print_made

        print_made(console(), made)


def _print_plan(plan: QuestionsPlan) -> None:
    print(
        f"at most {plan.max_calls:,} calls of {plan.model}: {plan.candidates:,} questions are written "
        f"({plan.cached:,} of them cached) and checked, until {plan.wanted:,} are kept; passages of "
        f"{plan.documents:,} documents in {plan.store}"
    )
    if plan.unreadable:
        print(f"{plan.unreadable:,} more documents have no text, or no passage of prose")


@command
def _examples(args: Args) -> int:
    """raypipe examples qasper/qasper-train-v0.3.json --out qasper/train.jsonl
    data PATH+: questions with answers
    format
    --out FILE {required}: the pool: .jsonl or .jsonl.gz
    --explain MODEL: a generator of the models file: it says why each answer is right, and that is kept
    models llm cluster json
    """
    use = f"use it with --graph NAME={args.out}, NAME as the recipe calls its pool"
    return printed(args, called(raypipe.build_examples, args), lambda made: print(made.title, use, sep="\n"))
