"""Commands that answer single questions: ask, and serve (the endpoint on this machine)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, console, say
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.core.records import ABSTAINED
from raypipe.evaluation.report.formatting import cut
from raypipe.serving.access import RETENTION_DAYS, CaptureConfig
from raypipe.text.filters import parse

if TYPE_CHECKING:
    from raypipe.api.questions import AskResult
    from raypipe.text.context import Place


@dataclass(frozen=True)
class EndpointFlags(shared.Options):
    """Options of the endpoint. Each has the name of a field of ServeArgs."""

    keys: str | None = arg("API keys, one per line, besides those in $RAYPIPE_KEYS", "FILE")
    key_filters: str | None = arg("keys that may search a part of the store ($RAYPIPE_KEY_FILTERS)", "FILE")
    auth: Literal["none"] | None = arg("none: anyone who reaches the port may ask questions")
    gateways: int = arg("number of gateways; of two, one may die (1)", "N", shared.whole(1), default=1)


@command("serve", "rag --docs manuals --port 8000")
def serve(
    recipe: str = arg(f"{shared.LIVE} (local)", "RECIPE", default="local"),
    *,
    session: Session = shared.session(*shared.OF_RECIPE),
    place: shared.StoreFlags,
    host: str = arg("address to listen on (default: 127.0.0.1)", "ADDRESS", default="127.0.0.1"),
    port: int = arg("port to listen on (default: 8000)", "N", shared.whole(1, 65535), default=8000),
    options: EndpointFlags,
    memo: int = arg("memory of a gateway for values (64; 0: none)", "MB", shared.whole(0), default=64),
    capture: float | None = arg("write this share of answers into the store (none)", "RATE", shared.share),
    retention: float | None = arg("delete captured answers after this time (7)", "DAYS", shared.above_0),
    redact: str | None = arg("your function that removes text that must not be captured", "MODULE:NAME"),
    mcp: Literal["http", "stdio"] | None = arg(
        "tools for agents: at /mcp next to the routes; stdio: for a client that starts this command",
        const="http",
    ),
) -> int:
    from raypipe.api.endpoint import ServeArgs, check_address, serve_here
    from raypipe.api.endpoint import serve as run

    stdio, docs, settings = mcp == "stdio", place.docs, session.settings
    endpoint = ServeArgs(
        recipe,
        session.models,
        place.store,
        session.cluster,
        graphs=session.graphs,
        llm=session.llm,
        capture=_capture(capture, retention, redact),
        memo_mb=memo,
        mcp=mcp is not None,
        **options.given(),
    )
    if stdio:
        alone = {name.replace("_", "-"): getattr(options, name) for name in ("keys", "key_filters", "auth")}
        if given := [name for name, value in (alone | {"capture": capture}).items() if value is not None]:
            raise ConfError(f"--{given[0]}: expected without --mcp stdio, whose one client started it")
    if docs is None:
        if stdio:
            serve_here(endpoint, say, settings)
        else:
            run(endpoint, host, port, say, settings)
        return 0
    from raypipe.api.indexes import ServedDocs, file_states, follow

    if not endpoint.follow_live:  # open_docs refuses live. Check first: indexing may take minutes
        if not stdio:
            check_address(endpoint, host, port, settings)
        endpoint.check_models(settings, endpoint.session(settings).recipe(recipe))
    seen, served = file_states(docs), ServedDocs(recipe, docs, place.store, session)

    def followed(reopen: Callable[[], None]) -> object:
        return follow(docs, seen, lambda: served.read_again(reopen), say)

    if stdio:
        serve_here(endpoint, say, settings, served.open, followed)
    else:
        run(replace(endpoint, store=served.open()), host, port, say, settings, followed)
    return 0


def _capture(rate: float | None, days: float | None, redact: str | None) -> CaptureConfig | None:
    """Returns the settings of --capture; None without it. Raises ConfError for its options without it."""
    if rate is not None:
        return CaptureConfig(rate, RETENTION_DAYS if days is None else days, redact)
    for name, value in (("retention", days), ("redact", redact)):
        if value is not None:
            raise ConfError(f"--{name}: expected --capture RATE with it, found none")
    return None


SHOWN, SHOWN_CHARS = 3, 160  # quotes of an answer on a terminal, and characters of each; `--json` has all
AROUND_CHARS = 40  # characters shown of the page before and after a quote


@command("ask", 'rag "how long is the warranty?" --docs manuals')
def ask(
    shell: Shell,
    recipe: str = arg(shared.LIVE, "RECIPE", needed=True),
    question: str = arg("a new question, or the id or words of a stored one", "QUESTION", default=""),
    *,
    session: Session = shared.session(*shared.OF_RECIPE, "sets"),
    pages: str | None = arg("search the search results of this CRAG line", "FILE"),
    time: str = arg('time of the question: "03/05/2024, 23:18:31 PT"', "T", default=""),
    where: str | None = arg("condition on fields: team = 'hr' and date >= '2025-01-01'", "CONDITION"),
    turns: str | None = arg("earlier messages, as JSON; without QUESTION the last is asked", "FILE"),
    place: shared.StoreFlags,
    verbose: bool = arg("print the ranking, its scores, and the time of each step", flag="-v"),
) -> Shown[Any]:
    if not (question or turns):
        raise ConfError("missing: QUESTION, or --turns FILE with a conversation (raypipe ask --help)")
    if where is not None:
        parse(where)
    if not (place.docs or pages or place.store or shell.settings.store):
        say(f"no --docs and no --store: searching {shell.settings.store_to_use(None)}")
    # A reply is printed piece by piece as it is generated, and the answer at the end.
    pieces = None if shell.json else lambda piece: print(piece, end="", file=sys.stderr, flush=True)
    found = raypipe.ask(
        recipe, question, pages, time, place.store, verbose, pieces, session, place.docs, where or "", turns
    )
    return Shown(found, lambda found: _print(found, verbose))


def _where(url: str | None, place: Place | None) -> str:
    """Formats the address of a passage; for a file, also its page and section."""
    shown = unquote(url) if url and "://" not in url else url  # a file's name, unescaped
    return ", ".join(x for x in (shown, place and place.page, place and place.section) if x)


def _print(found: AskResult, verbose: bool) -> None:
    """Prints the answer, the question if earlier turns changed it, faults, answers of other files that
    differ, the first source, and up to three quotes. `verbose` adds the first five passages and the times."""
    from rich.text import Text

    from raypipe.text.context import context

    out, answered, question = console(), found.result, found.result.question
    out.print(Text(question.answer or "(no answer)", "bold"), Text(f"  [{question.outcome}]"))
    if answered.asked and answered.asked.text != question.text:
        out.print(Text(f"asked with its turns: {question.text}", "dim"))
    for fault in (*answered.faults, *question.faults):
        out.print(Text(f"{fault.step}: {fault.reason}: {fault.detail}", "red"))
    if answered.others:
        values = (f"{e.quote} ({_where(e.url, e.place) or e.source})" for e in answered.others)
        out.print(Text(f"Other files say: {'; '.join(values)}"))
    places = [_where(e.url, e.place) or e.source for e in answered.evidence[:SHOWN]]
    if places:
        out.print(Text(("closest: " if question.outcome == ABSTAINED else "from ") + places[0], "dim"))
    lines: list[tuple[str, str]] = []  # place, printed quote
    for e, place in zip(answered.evidence[:SHOWN], places, strict=True):
        whole, span = e.before + e.quote + e.after, (len(e.before), len(e.before) + len(e.quote))
        before, after = context(whole, span, AROUND_CHARS)
        quote = Text.assemble("  ", (before, "dim"), (cut(e.quote, SHOWN_CHARS), "bold"), (after, "dim"))
        if any(place == of and quote.plain.strip() in line for of, line in lines):
            continue  # it is part of a printed quote with its context
        lines.append((place, quote.plain))
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
