"""Commands that make, fetch, read or look at data: synth, download, ingest, parse, questions, examples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, at_least, called, command, console, print_json, printed, say
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.data import IngestResult
    from raypipe.api.made_questions import MadeQuestionsResult, QuestionsPlan
    from raypipe.api.previews import Preview


@command(
    "synth",
    "raypipe synth demo --questions 20 --pages 50 --seed 1 --page-chars 2000",
    arg("folder DIR", type=Path),
    arg("--questions N", type=at_least(1), required=True),
    arg("--pages P", "search results each (50)", at_least(1)),
    arg(
        "--papers N",
        "write a collection of papers for all questions in place of pages for each: corpus.jsonl, "
        "queries.jsonl and qrels.trec; at most a question for 20 papers",
        at_least(1),
    ),
    arg("--seed S", "other worlds for other seeds (1)", int, 1),
    arg(
        "--page-chars N",
        "characters of HTML a page, about (default: spread like real pages, 3 KB to 1.5 MB)",
        at_least(1000),
    ),
    "json",
)
def _synth(args: Args) -> int:
    from raypipe.api.datasets import synthesize, synthesize_papers

    if args.papers is None:
        pages = 50 if args.pages is None else args.pages
        return printed(args, called(synthesize, args, pages=pages), lambda made: print(made.title))
    if args.pages is not None or args.page_chars is not None:
        raise ConfError("--papers: expected without --pages and --page-chars, which are of questions' pages")
    return printed(args, called(synthesize_papers, args), lambda made: print(made.title))


@command(
    "download",
    "raypipe download crag --task 1 /data/crag",
    arg("what", choices=("crag", "qasper")),
    arg("folder DIR", type=Path),
    arg("--task", "of crag, required: 1: 5 pages a question (0.7 GB); 3: 50 (7.7 GB)", choices=("1", "3")),
    arg("--version", "of crag: v5 adds popularity labels (v4)", choices=("v4", "v5")),
)
def _download(args: Args) -> int:
    from raypipe.api.datasets import download_crag, download_qasper

    if args.what == "qasper":
        if args.task or args.version:
            raise ConfError("--task and --version: expected with crag alone; qasper has one set of files")
        files = called(download_qasper, args)
    elif args.task is None:
        raise ConfError("--task: expected 1 or 3 with crag, found none")
    else:
        files = called(download_crag, args, version=args.version or "v4")
    for file in files:
        print(file)
    return 0


@command(
    "ingest",
    "raypipe ingest faq.parquet --fields query=prompt,answer=gold --store /data/store --dry-run",
    arg("paths PATH+", "files, folders of files, or URIs of some"),
    "files kind",
    arg(
        "--glob PATTERN ...",
        "with --format files: read only files whose path in the folder matches, such as '*.pdf'; "
        "'!old/*' leaves out (may be repeated)",
        dest="globs",
    ),
    arg("--dry-run", "show the fields that are found and the first row, store nothing"),
    "store cluster json",
)
def _ingest(args: Args) -> int:
    from raypipe.api.data import ingest

    if not args.dry_run:
        return printed(args, called(ingest, args), _print_read)
    if args.format == "files":
        raise ConfError("--dry-run shows the fields of rows: not with --format files")
    from raypipe.api.previews import preview
    from raypipe.report.previews import print_preview

    def show(found: Preview) -> None:
        print_preview(console(), found.to_json(), named=args.format is not None)

    return printed(args, called(preview, args), show)


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


@command(
    "parse",
    "raypipe parse page.html --json",
    arg("files FILE+"),
    arg("--html", "whose text (default: lxml)", default="lxml", choices=("lxml", "html.parser")),
    "json-lines",
)
def _parse(args: Args) -> int:
    from raypipe.api.data import parse_html

    failed = 0
    for page in parse_html(args.files, args.html):
        failed += page.fault is not None
        if args.json:
            print_json(page.to_json())
        elif page.fault:
            say(f"raypipe parse: {page.file}: {page.fault.reason}: {page.fault.detail}")
        else:
            print(page.text)
    return 3 if failed else 0


@command(
    "questions",
    "raypipe questions /data/handbook --llm http://127.0.0.1:8000/v1#MODEL --n 200 --store /data/store",
    arg("documents PATH*", "documents to read into the store first (default: none)"),
    "files store models llm",
    arg("--n N", "questions wanted (200)", at_least(1), 200, dest="number"),
    arg("--seed S", "other passages for other seeds (1)", int, 1),
    arg("--out FILE", "the questions, as rows (questions.jsonl)", default="questions.jsonl"),
    arg("--dry-run", "print the number of calls, make nothing"),
    "json",
)
def _questions(args: Args) -> int:
    from raypipe.api.made_questions import make_questions

    quiet = (lambda plan: None) if args.json else _print_plan
    return printed(args, called(make_questions, args, on_plan=quiet), _print_made)


def _print_made(made: MadeQuestionsResult) -> None:
    if made.out is not None:
        from raypipe.report.made_questions import print_made

        print_made(console(), made.to_json())


def _print_plan(plan: QuestionsPlan) -> None:
    print(
        f"at most {plan.max_calls:,} calls of {plan.model}: {plan.candidates:,} questions are written "
        f"({plan.cached:,} of them cached) and checked, until {plan.wanted:,} are kept; passages of "
        f"{plan.documents:,} documents in {plan.store}"
    )
    if plan.unreadable:
        print(f"{plan.unreadable:,} more documents have no text, or no passage of prose")


@command(
    "examples",
    "raypipe examples qasper/qasper-train-v0.3.json --out qasper/train.jsonl",
    arg("data PATH+", "questions with answers"),
    "format",
    arg("--out FILE", "the pool: .jsonl or .jsonl.gz", required=True),
    arg(
        "--explain MODEL",
        "a generator of the models file: it says why each answer is right, and that is kept",
    ),
    "models llm cluster json",
)
def _examples(args: Args) -> int:
    from raypipe.api.example_pools import build_examples

    use = f"use it with --graph NAME={args.out}, NAME as the recipe calls its pool"
    return printed(args, called(build_examples, args), lambda made: print(made.title, use, sep="\n"))
