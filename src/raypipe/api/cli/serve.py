"""Commands that answer single questions: ask, and serve, the endpoint on this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

import raypipe
from raypipe.api.cli.command import Args, called, command, console, graphs, printed, say
from raypipe.core.errors import ConfError
from raypipe.core.records import ABSTAINED

if TYPE_CHECKING:
    from raypipe.api.questions import AskResult
    from raypipe.serving.access import CaptureConfig
    from raypipe.text.places import Place


@command
def _serve(args: Args) -> int:
    """raypipe serve rag --docs manuals --port 8000
    live? docs store cluster
    --host ADDRESS {= 127.0.0.1}: to listen on (default: 127.0.0.1)
    --port N {1..65535 = 8000}: default: 8000
    --keys FILE: file with one API key a line; keys in $RAYPIPE_KEYS, separated by commas, count as well
    --key-filters FILE: file of keys that may search a part of the store, each with its filter (default: what
      $RAYPIPE_KEY_FILTERS says)
    --auth {none|}: none: anyone who reaches the port may ask
    --gateways N {1.. = 1}: with two, one may die (default: 1)
    --memo MB {0.. = 64 -> memo_mb}: memory of a gateway for what models computed about the store: an
      equal question asks no model again (default: 64; 0: none)
    --capture RATE {share}: write this share of the questions, with evidence and answers, into the store
      (default: none)
    --retention DAYS {above_0}: delete captured answers after this many days (default: 7)
    --redact MODULE:NAME: your function of one text that takes out what may not be captured
    """
    from raypipe.api.endpoint import ServeArgs, check_address, serve

    endpoint = called(ServeArgs, args, graphs=graphs(args), capture=_capture(args))
    if args.docs is not None:
        from raypipe.api.indexes import open_docs

        if not endpoint.follow_live:  # which open_docs refuses; reading and indexing may take minutes
            check_address(endpoint, args.host, args.port, args.settings)
            endpoint.check_models(args.settings, endpoint.session(args.settings).recipe(args.recipe))
        endpoint = replace(endpoint, store=called(open_docs, args).uri)
    serve(endpoint, args.host, args.port, say, args.settings)
    return 0


def _capture(args: Args) -> CaptureConfig | None:
    """What is captured. Raises ConfError for options of a capture that is off."""
    from raypipe.serving.access import RETENTION_DAYS, CaptureConfig

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


SHOWN, SHOWN_CHARS = 3, 160  # quotes of a reply and characters of each on a terminal; `--json` has all
AROUND_CHARS = 40  # of the page before and after a quote


@command
def _ask(args: Args) -> int:
    """raypipe ask rag "how long is the warranty?" --docs manuals
    live sets
    question QUESTION: the question; one that is stored, by its id or in its words, has its own pages
    --pages FILE: a CRAG line: its search results are searched
    docs
    --time T {= "" -> asked_at}: time of the question: "03/05/2024, 23:18:31 PT"
    store cluster json
    """
    if not (args.docs or args.pages or args.store or args.settings.store):
        say(f"no --docs and no --store: searching {args.settings.store_to_use(None)}")
    # A reply is printed piece by piece as it is generated, and the answer at the end.
    pieces = None if args.json else lambda piece: print(piece, end="", file=sys.stderr, flush=True)
    return printed(args, called(raypipe.ask, args, passages=not args.json, on_text=pieces), _print)


def _where(url: str | None, place: Place | None) -> str:
    """The address of a passage; of a file its page and section, too."""
    shown = unquote(url) if url and "://" not in url else url  # a file as its folder names it
    return ", ".join(x for x in (shown, place and place.page, place and place.section) if x)


def _print(found: AskResult) -> None:
    from rich.text import Text

    from raypipe.evaluation.report.wording import cut

    out, answered, question = console(), found.result, found.result.question
    out.print(Text(question.answer or "(no answer)", "bold"), Text(f"  [{question.outcome}]"))
    for fault in (*answered.faults, *question.faults):
        out.print(Text(f"{fault.step}: {fault.reason}: {fault.detail}", "red"))
    label = "not sure: " if question.outcome == ABSTAINED else "evidence: "
    for e in answered.evidence[:SHOWN]:
        before, after = e.before[-AROUND_CHARS:], e.after[:AROUND_CHARS]
        said = Text.assemble(label, (before, "dim"), (e.quote[:SHOWN_CHARS], "bold"), (after, "dim"))
        out.print(said, Text(f"  {_where(e.url, e.place) or e.source}", "dim"))
    quoted = {e.chunk for e in answered.evidence[:SHOWN]}
    for passage in answered.passages[:5]:
        scores = " ".join(f"{name} {value:.3f}" for name, value in passage.hit.scores.items())
        text = "quoted above" if passage.hit.chunk in quoted else cut(passage.text, SHOWN_CHARS)
        where = _where(passage.url, passage.place) or passage.hit.source
        out.print(Text(f"  {scores}", "dim"), Text(f" {where}:", "bold"), Text(text))
    out.print(Text("  ".join(f"{name} {ms:.0f} ms" for name, ms in answered.timings_ms.items()), "dim"))
