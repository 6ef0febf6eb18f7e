"""The command forget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, called, command, one_of_these, printed

if TYPE_CHECKING:
    from raypipe.api.forget import ForgetResult


@command(
    "forget",
    "raypipe forget https://example.org/page --reason 'licence ended' --yes --store /data/store",
    arg(
        "name URL|SOURCE|QUESTION",
        "a url that questions cite, the path of a document, or the id of a source or question",
    ),
    one_of_these(arg("--dry-run", "list what holds it or rests on it"), arg("--yes", "remove it, for good")),
    arg("--reason TEXT", "what its tombstone says when it is ingested again", default=""),
    arg(
        "--runs DIR ...",
        "also look through this folder of runs or training labels (default: those under $RAYPIPE_HOME; "
        "may be repeated)",
    ),
    "store json",
)
def _forget(args: Args) -> int:
    from raypipe.api.forget import forget

    return printed(args, called(forget, args), _print)


def _print(found: ForgetResult) -> None:
    for h in found.holdings:
        print(f"{h.kind} {h.name}: {h.rows} rows, {h.does}" if h.rows else f"{h.kind} {h.name}: {h.does}")
    what = f"{found.target} {found.name}"
    if found.dry_run:
        print(f"{what}: {len(found.holdings)} things hold it; nothing was removed (--yes removes it)")
    else:
        again = " by finishing what a killed command began" if found.finished else ""
        print(f"{what} is forgotten{again}; tombstone {found.tombstone[:8]} refuses it from now on")
