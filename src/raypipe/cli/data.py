"""Commands that make, fetch, read or look at data: synth, download, ingest, parse."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.session import Session


def add(commands: options.Commands) -> None:
    """Declares `synth`, `download`, `ingest` and `parse`."""
    _add_synth(commands)
    _add_download(commands)
    made = options.command(
        commands,
        "ingest",
        "raypipe ingest faq.parquet --fields query=prompt,answer=gold --store /data/store --dry-run",
        _ingest,
    )
    made.add_argument("paths", metavar="PATH", nargs="+", help="files, folders of files, or URIs of some")
    options.format_of(made, files=True)
    options.kind_of(made)
    made.add_argument(
        "--glob",
        dest="globs",
        metavar="PATTERN",
        action="append",
        default=[],
        help="with --format files: read only files whose path in the folder matches, such as '*.pdf'; "
        "'!old/*' leaves out (may be repeated)",
    )
    made.add_argument(
        "--dry-run",
        action="store_true",
        help="show the fields that are found and the first row, store nothing",
    )
    options.store(made)
    options.cluster(made)
    options.as_json(made)
    parse = options.command(
        commands,
        "parse",
        "raypipe parse page.html --json",
        _parse,
    )
    parse.add_argument("files", metavar="FILE", nargs="+")
    parse.add_argument(
        "--html", choices=("lxml", "html.parser"), default="lxml", help="whose text (default: lxml)"
    )
    options.as_json(parse, lines=True)


def _add_synth(commands: options.Commands) -> None:
    made = options.command(
        commands,
        "synth",
        "raypipe synth demo --questions 20 --pages 50 --seed 1 --page-chars 2000",
        _synth,
    )
    made.add_argument("folder", metavar="DIR", type=Path)
    made.add_argument("--questions", metavar="N", type=options.at_least(1), required=True)
    made.add_argument("--pages", metavar="P", type=options.at_least(1), help="search results each (50)")
    made.add_argument(
        "--papers",
        metavar="N",
        type=options.at_least(1),
        help="write a collection of papers for all questions in place of pages for each: corpus.jsonl, "
        "queries.jsonl and qrels.trec; at most a question for 20 papers",
    )
    made.add_argument("--seed", metavar="S", type=int, default=1, help="other worlds for other seeds (1)")
    made.add_argument(
        "--page-chars",
        metavar="N",
        type=options.at_least(1000),
        help="characters of HTML a page, about (default: spread like real pages, 3 KB to 1.5 MB)",
    )
    options.as_json(made)


def _add_download(commands: options.Commands) -> None:
    made = options.command(
        commands,
        "download",
        "raypipe download crag --task 1 /data/crag",
        _download,
    )
    made.add_argument("what", choices=("crag", "qasper"))
    made.add_argument("folder", metavar="DIR", type=Path)
    made.add_argument(
        "--task",
        choices=("1", "3"),
        help="of crag, required: 1: 5 pages a question (0.7 GB); 3: 50 (7.7 GB)",
    )
    made.add_argument("--version", choices=("v4", "v5"), help="of crag: v5 adds popularity labels (v4)")


def _synth(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.datasets import SynthCollectionResult, SynthResult, synthesize, synthesize_papers

    session = options.session(args, settings, not args.json)
    made: SynthResult | SynthCollectionResult
    if args.papers is None:
        pages = 50 if args.pages is None else args.pages
        made = synthesize(args.folder, args.questions, pages, args.seed, args.page_chars, session)
    elif args.pages is not None or args.page_chars is not None:
        raise ConfError("--papers: expected without --pages and --page-chars, which are of questions' pages")
    else:
        made = synthesize_papers(args.folder, args.papers, args.questions, args.seed, session)
    if args.json:
        options.print_json(made.to_json())
    else:
        print(made.title)
    return 0


def _download(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.datasets import download_crag, download_qasper

    session = options.session(args, settings, progress=True)
    if args.what == "qasper":
        if args.task or args.version:
            raise ConfError("--task and --version: expected with crag alone; qasper has one set of files")
        files = download_qasper(args.folder, session)
    elif args.task is None:
        raise ConfError("--task: expected 1 or 3 with crag, found none")
    else:
        files = download_crag(args.folder, args.task, args.version or "v4", session)
    for file in files:
        print(file)
    return 0


def _ingest(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.data import ingest

    session = options.session(args, settings, not args.json)
    if args.dry_run and args.format == "files":
        raise ConfError("--dry-run shows the fields of rows: not with --format files")
    if args.dry_run:
        return _preview(args, session)
    read = ingest(args.paths, args.store, args.format, session, args.fields, args.globs, args.kind)
    if args.json:
        options.print_json(read.to_json())
        return 0
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
    return 0


def _preview(args: argparse.Namespace, session: Session) -> int:
    from raypipe.api.previews import preview
    from raypipe.report.previews import print_preview

    found = preview(args.paths, args.format, args.fields, session)
    if args.json:
        options.print_json(found.to_json())
    else:
        print_preview(options.console(), found.to_json(), named=args.format is not None)
    return 0


def _parse(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.data import parse_html

    failed = 0
    for page in parse_html(args.files, args.html):
        failed += page.fault is not None
        if args.json:
            options.print_json(page.to_json())
        elif page.fault:
            print(f"raypipe parse: {page.file}: {page.fault.reason}: {page.fault.detail}", file=sys.stderr)
        else:
            print(page.text)
    return 3 if failed else 0
