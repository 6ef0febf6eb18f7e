"""Commands that answer single questions: ask, and serve, the endpoint on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    from raypipe.text.cite import Place


@command
def _serve(args: Args) -> int:
    """raypipe serve rag --docs manuals --port 8000
    live? store cluster
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
    where = args.host, args.port, say, args.settings
    if args.docs is None:
        serve(endpoint, *where)
        return 0
    from raypipe.api.indexes import file_states, follow, open_docs

    if not endpoint.follow_live:  # which open_docs refuses; reading and indexing may take minutes
        check_address(endpoint, args.host, args.port, args.settings)
        endpoint.check_models(args.settings, endpoint.session(args.settings).recipe(args.recipe))
    seen = file_states(args.docs)
    endpoint = replace(endpoint, store=called(open_docs, args).uri)

    def read_again(reopen: Callable[[], None]) -> None:
        try:
            called(open_docs, args, on_read=reopen)
        finally:  # a folder that holds no document any more raises, and its store is empty
            reopen()

    serve(endpoint, *where, follow=lambda reopen: follow(args.docs, seen, lambda: read_again(reopen), say))
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
    --time T {= "" -> asked_at}: time of the question: "03/05/2024, 23:18:31 PT"
    store cluster
    -v {-> verbose}: print the ranking, its scores, and the time of each step
    json
    """
    if not (args.docs or args.pages or args.store or args.settings.store):
        say(f"no --docs and no --store: searching {args.settings.store_to_use(None)}")
    # A reply is printed piece by piece as it is generated, and the answer at the end.
    pieces = None if args.json else lambda piece: print(piece, end="", file=sys.stderr, flush=True)
    found = called(raypipe.ask, args, passages=args.verbose, on_text=pieces)
    return printed(args, found, lambda found: _print(found, args.verbose))


def _where(url: str | None, place: Place | None) -> str:
    """The address of a passage; of a file its page and section, too."""
    shown = unquote(url) if url and "://" not in url else url  # a file as its folder names it
    return ", ".join(x for x in (shown, place and place.page, place and place.section) if x)


def _print(found: AskResult, verbose: bool) -> None:
    """Prints the answer, its place, and three lines of evidence; `verbose`: the ranking and times, too."""
    from rich.text import Text

    from raypipe.evaluation.report.wording import cut
    from raypipe.text.cite import context

    out, answered, question = console(), found.result, found.result.question
    out.print(Text(question.answer or "(no answer)", "bold"), Text(f"  [{question.outcome}]"))
    for fault in (*answered.faults, *question.faults):
        out.print(Text(f"{fault.step}: {fault.reason}: {fault.detail}", "red"))
    if answered.others:
        values = (f"{e.quote} ({_where(e.url, e.place) or e.source})" for e in answered.others)
        out.print(Text(f"Other files say: {'; '.join(values)}"))
    places = [_where(e.url, e.place) or e.source for e in answered.evidence[:SHOWN]]
    if places:
        out.print(Text(("closest: " if question.outcome == ABSTAINED else "from ") + places[0], "dim"))
    for e, place in zip(answered.evidence[:SHOWN], places, strict=True):
        whole, span = e.before + e.quote + e.after, (len(e.before), len(e.before) + len(e.quote))
        before, after = context(whole, span, AROUND_CHARS)
        quote = Text.assemble("  ", (before, "dim"), (cut(e.quote, SHOWN_CHARS), "bold"), (after, "dim"))
        out.print(quote, Text("" if place == places[0] else f"  {place}", "dim"))
    if not verbose:
        return
    quoted = {e.chunk for e in answered.evidence[:SHOWN]}
    for passage in answered.passages[:5]:
        scores = " ".join(f"{name} {value:.3f}" for name, value in passage.hit.scores.items())
        text = "quoted above" if passage.hit.chunk in quoted else cut(passage.text, SHOWN_CHARS)
        where = _where(passage.url, passage.place) or passage.hit.source
        out.print(Text(f"  {scores}", "dim"), Text(f" {where}:", "bold"), Text(text))
    out.print(Text("  ".join(f"{name} {ms:.0f} ms" for name, ms in answered.timings_ms.items()), "dim"))
