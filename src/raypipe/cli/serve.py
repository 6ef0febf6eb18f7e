"""The command `serve`: the endpoint on this machine."""

from __future__ import annotations

import argparse
import sys

from raypipe.api.settings import Settings
from raypipe.cli import options

HOST = "127.0.0.1"  # this machine alone
PORT = 8000


def add(commands: options.Commands) -> None:
    """Declares `serve`."""
    made = options.command(commands, "serve", "raypipe serve rag --docs manuals --port 8000", _serve)
    options.recipe(made, optional=True, live=True)
    options.docs(made)
    options.store(made)
    options.cluster(made)
    made.add_argument("--host", metavar="ADDRESS", default=HOST, help=f"to listen on (default: {HOST})")
    made.add_argument(
        "--port", metavar="N", type=options.between(1, 65535), default=PORT, help=f"default: {PORT}"
    )
    made.add_argument(
        "--keys",
        metavar="FILE",
        help="file with one API key a line; keys in $RAYPIPE_KEYS, separated by commas, count as well",
    )
    made.add_argument("--auth", choices=("none",), help="none: anyone who reaches the port may ask")
    made.add_argument(
        "--gateways",
        metavar="N",
        type=options.at_least(1),
        default=1,
        help="with two, one may die (default: 1)",
    )
    made.add_argument(
        "--fallback",
        metavar="RECIPE",
        help="its extract step answers while a language model is unavailable (default: i don't know)",
    )


def _serve(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.endpoint import ServeArgs, serve

    store = args.store
    if args.docs is not None:
        from raypipe.api.docs import open_docs

        session = options.session(args, settings, progress=True)
        store = open_docs(args.recipe, args.docs, store, session).uri
    endpoint = ServeArgs(
        args.recipe,
        args.models,
        store,
        args.cluster,
        args.keys,
        args.auth,
        args.fallback,
        gateways=args.gateways,
        graphs=options.graphs(args),
        llm=args.llm,
    )
    serve(endpoint, args.host, args.port, _say, settings)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
