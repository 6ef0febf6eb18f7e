"""The command `serve`: the endpoint on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, at_least, between, called, command, graphs, say, share
from raypipe.core.errors import ConfError
from raypipe.serving.access import MEMO_MB

if TYPE_CHECKING:
    from raypipe.serving.capture_config import CaptureConfig

HOST = "127.0.0.1"  # this machine alone
PORT = 8000


@command(
    "serve",
    "raypipe serve rag --docs manuals --port 8000",
    "live? docs store cluster",
    arg("--host ADDRESS", f"to listen on (default: {HOST})", default=HOST),
    arg("--port N", f"default: {PORT}", between(1, 65535), PORT),
    arg(
        "--keys FILE",
        "file with one API key a line; keys in $RAYPIPE_KEYS, separated by commas, count as well",
    ),
    arg(
        "--tenants FILE",
        "file of tenants: keys with a name, a share, limits a minute, releases and filters (default: "
        "what $RAYPIPE_TENANTS says)",
    ),
    arg("--auth", "none: anyone who reaches the port may ask", choices=("none",)),
    arg("--gateways N", "with two, one may die (default: 1)", at_least(1), 1),
    arg(
        "--fallback RECIPE",
        "its extract step answers while a language model is unavailable (default: i don't know)",
    ),
    arg(
        "--memo MB",
        "memory of a gateway for what models computed about the store: an equal question asks no model "
        f"again (default: {MEMO_MB}; 0: none)",
        at_least(0),
        MEMO_MB,
        dest="memo_mb",
    ),
    arg(
        "--shadow DIR",
        "the --out folder of a finished eval, whose recipe answers some questions again after the reply",
    ),
    arg("--share SHARE", "of the questions that the shadow answers: 0.05", share),
    arg(
        "--capture RATE",
        "write this share of the questions, with evidence and answers, into the store (default: none)",
        share,
    ),
    arg("--retention DAYS", "delete captured answers after this many days (default: 7)", float),
    arg("--redact MODULE:NAME", "your function of one text that takes out what may not be captured"),
)
def _serve(args: Args) -> int:
    from raypipe.api.endpoint import ServeArgs, serve

    _check_shadow(args)
    if args.docs is not None:
        from raypipe.api.docs import open_docs

        args.store = called(open_docs, args).uri
    capture = _capture(args)
    endpoint = called(ServeArgs, args, graphs=graphs(args), capture=capture)
    serve(endpoint, args.host, args.port, say, args.settings, lambda: _start_shadow(args))
    return 0


def _check_shadow(args: Args) -> None:
    """Raises ConfError for half of the options of --shadow, and next to a named recipe."""
    if (args.shadow is None) != (args.share is None):
        raise ConfError("--shadow DIR and --share SHARE: expected both, found one of them")
    if args.shadow is not None and args.recipe != "live":
        raise ConfError("--shadow: a run is held against the live release: expected `raypipe serve live`")


def _start_shadow(args: Args) -> None:
    """Puts the run of --shadow, if there is one, into the shadow."""
    if args.shadow is None:
        return
    from raypipe.api.trials import start_shadow

    # The store that is served, in the place of that of the run.
    trial = called(start_shadow, args, run=args.shadow, store=args.settings.store_to_use(args.store))
    say(f"release {trial.release} answers {trial.share:.0%} of the questions in the shadow: `raypipe trial`")


def _capture(args: Args) -> CaptureConfig | None:
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
