"""The command `view`."""

from __future__ import annotations

from raypipe.cli.command import Args, arg, between, called, command, names, print_json, printed, say
from raypipe.core.errors import ConfError


@command(
    "view",
    "raypipe view /data/runs/local /data/runs/tuned",
    arg(
        "runs DIR*",
        "folder or URI of a finished eval, or a folder of such (default: the runs under $RAYPIPE_HOME, "
        "and those that the store knows)",
    ),
    arg("--out FILE", "write the page of one run or two as one file, and end"),
    arg(
        "--without PARTS",
        "of the file: leave out prompts, or pages (texts of pages, and the prompts, which hold them)",
        names,
        (),
    ),
    arg("--labels FILE", "where people's marks are written (default: labels.jsonl in the run's folder)"),
    arg("--port N", "0: a free one (default: 8001)", between(0, 65535), 8001),
    "store json",
)
def _view(args: Args) -> int:
    from raypipe.api.view import left_out, list_runs, serve_view, write_view

    if args.out is None and args.without:
        raise ConfError("--without: it leaves parts out of a file, found no --out. Name it: --out FILE")
    if args.out is not None and args.labels is not None:
        raise ConfError("--labels: a file of --out takes no marks. Leave out one of the two")
    if args.out is not None:
        made = called(write_view, args)
        return printed(args, made, lambda made: print(f"{made.file}: {made.bytes / 1e6:.1f} MB"))
    if args.json:
        found = called(list_runs, args, dirs=args.runs)
        print_json(found.to_json())
        if found.unread:
            say(f"{len(found.runs)} runs{left_out(found.unread)}")
        return 0
    called(serve_view, args, dirs=args.runs, say=say)
    return 0
