"""The command `serve`: the endpoint on this machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from raypipe.api.settings import Settings
from raypipe.cli import options
from raypipe.core.errors import ConfError
from raypipe.serving.access import MEMO_MB

if TYPE_CHECKING:
    from raypipe.serving.capture_config import CaptureConfig

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
    made.add_argument(
        "--tenants",
        metavar="FILE",
        help="file of tenants: keys with a name, a share, limits a minute, releases and filters (default: "
        "what $RAYPIPE_TENANTS says)",
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
    made.add_argument(
        "--memo",
        metavar="MB",
        type=options.at_least(0),
        default=MEMO_MB,
        help="memory of a gateway for what models computed about the store: an equal question asks no model "
        f"again (default: {MEMO_MB}; 0: none)",
    )
    made.add_argument(
        "--shadow",
        metavar="DIR",
        help="the --out folder of a finished eval, whose recipe answers some questions again after the reply",
    )
    made.add_argument(
        "--share", metavar="SHARE", type=options.share, help="of the questions that the shadow answers: 0.05"
    )
    made.add_argument(
        "--capture",
        metavar="RATE",
        type=options.share,
        help="write this share of the questions, with evidence and answers, into the store (default: none)",
    )
    made.add_argument(
        "--retention",
        metavar="DAYS",
        type=float,
        help="delete captured answers after this many days (default: 7)",
    )
    made.add_argument(
        "--redact",
        metavar="MODULE:NAME",
        help="your function of one text that takes out what may not be captured",
    )


def _serve(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.endpoint import ServeArgs, serve

    _check_shadow(args)
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
        capture=_capture(args),
        tenants=args.tenants,
        memo_mb=args.memo,
    )
    serve(endpoint, args.host, args.port, _say, settings, lambda: _start_shadow(args, store, settings))
    return 0


def _check_shadow(args: argparse.Namespace) -> None:
    """Raises ConfError for half of the options of --shadow, and next to a named recipe."""
    if (args.shadow is None) != (args.share is None):
        raise ConfError("--shadow DIR and --share SHARE: expected both, found one of them")
    if args.shadow is not None and args.recipe != "live":
        raise ConfError("--shadow: a run is held against the live release: expected `raypipe serve live`")


def _start_shadow(args: argparse.Namespace, store: str | None, settings: Settings) -> None:
    """Puts the run of --shadow, if there is one, into the shadow."""
    if args.shadow is None:
        return
    from raypipe.api.trials import start_shadow

    opened = options.session(args, settings).store(store)
    trial = start_shadow(args.shadow, args.share, opened)
    _say(f"release {trial.release} answers {trial.share:.0%} of the questions in the shadow: `raypipe trial`")


def _capture(args: argparse.Namespace) -> CaptureConfig | None:
    """What is captured. Raises ConfError for options of a capture that is off."""
    from raypipe.serving.capture_config import RETENTION_DAYS, CaptureConfig

    if args.capture is None:
        for name in ("retention", "redact"):
            if getattr(args, name) is not None:
                raise ConfError(f"--{name}: expected --capture RATE with it, found none")
        return None
    days = RETENTION_DAYS if args.retention is None else args.retention
    try:
        return CaptureConfig(args.capture, days, args.redact)
    except ValueError as e:
        raise ConfError(str(e)) from e


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
