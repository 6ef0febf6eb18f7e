"""Fuzzes the call language: random programs are parsed, printed, parsed again and run.

    python bench/drills/fuzz.py --programs 100000 --seed 1

A third are calls that make sense of a kind, over names, keys and times that the graph has and has not; the
others are calls with characters changed, pieces of the language in any order, and characters in any order.
Each line of any program must give a result or a declared fault: nothing may raise. Prints one JSON object;
exit code 1, with the program, if something raised, a line had no result, or a parsed program did not print
back to an equal one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import string
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from raypipe.contrib.crag.client import ABSENT_ON_500
from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.graph import FolderBackend, GraphFault, ServerBackend
from raypipe.contrib.crag.language.parser import parser
from raypipe.contrib.crag.language.program import FUNCTIONS, Bad, Program, print_program
from raypipe.contrib.crag.mock_api import MockApi
from raypipe.contrib.crag.server import application
from raypipe.text.moments import moment

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/contrib/crag"))
import smallgraph

NAMES = (
    "amelie",
    "walt becker",
    '"the maze runner"',
    '"Zak Santiago"',
    "lakers",
    "the larks",
    "florida city",
    "nott'ham forest",
    "brighton",
    "x",
    "*",
    "None",
    "2001",
    "1e999",
    "-3",
    '""',
    '"%_"',
    '"a\'); DROP TABLE movie;"',
    '["zak santiago", "brenda crichlow"]',
    "['a', 2]",
    "[]",
    '"\\"',
    '"é\u0301"',
    '"' + "long " * 18 + '"',
)
TIMES = (
    "2024",
    "2024-02",
    '"2024-02-26"',
    "yesterday",
    '"last friday"',
    '"last week"',
    "ipo",
    '"most recent"',
    "9999",
    '"0000-00-00"',
    '"2023-02-29"',
    "soon",
    "*",
    "None",
    "-1",
)
KEYS = (
    "title",
    "name",
    "year",
    "genres",
    "release_date",
    "budget",
    "revenue",
    "rating",
    "character",
    "order",
    "job",
    "category",
    "winner",
    "population",
    "open",
    "close",
    "time",
    "value",
    "date",
    "GF",
    "result",
    "members",
    "music",
    "birthday",
    "birth_place",
    "award_count",
    "best_album",
    "len",
    "nonsense",
    '"release_date"',
    '"x\'y"',
    "rowid",
    "raw",
    "*",
)
PIECES = (
    *FUNCTIONS,
    "sort",
    "AVG",
    "ALL",
    "None",
    "(",
    ")",
    "[",
    "]",
    ",",
    ";",
    "\n",
    '"',
    "'",
    "*",
    ":",
    "-",
    "len",
    "eq",
    "neq",
    "ge",
    "lt",
    "year",
    "2012",
    "[:3]",
    '["title"]',
    '"maze runner"',
    " ",
    "\\",
    "é",
    "\x00",
    "\u2028",
    "name",
    "eq(year, 2012)",
    '["len"]',
    'get_movie("x")',
)
ARITY = {
    "get_movie_person_cast": 2,
    "get_movie_person_crew": 2,
    "get_movie_person_oscar": 2,
    "get_stock_price": 2,
    "get_nba_on_date": 2,
    "get_soccer_on_date": 2,
}
DOMAINS = ("", "movie", "finance", "music", "sports", "open")
ASKED = (
    "03/05/2024, 10:00:00 PT",
    "02/29/2024, 23:59:59 PT",
    "01/01/1000, 00:00:00 PT",
    "12/31/9000, 23:00:00 PT",
)


def programs(number: int, seed: int) -> Iterator[str]:
    """`count` programs as text; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(number):
        kind = rng.random()
        text = "\n".join(_line(rng) for _ in range(rng.randint(1, 4)))
        if kind < 0.35:
            yield text
        elif kind < 0.65:
            chars = list(text)
            for _ in range(rng.randint(1, 3)):
                chars[rng.randrange(len(chars))] = rng.choice(string.printable)
            yield "".join(chars)
        elif kind < 0.9:
            yield "".join(rng.choices(PIECES, k=rng.randint(1, 14)))
        else:
            yield "".join(chr(rng.randrange(1, 0x3000)) for _ in range(rng.randint(0, 60)))


def _line(rng: random.Random) -> str:
    if rng.random() < 0.25:
        line = f"sort({_where(rng)}, {rng.choice(('', '-'))}{rng.choice(KEYS)}){_tail(rng)}"
    else:
        name = rng.choice(FUNCTIONS)
        args = [rng.choice(NAMES if i == 0 else (*NAMES, *TIMES)) for i in range(ARITY.get(name, 1))]
        if "_on_date" in name or name == "get_stock_price":
            args[1:] = [rng.choice(TIMES) for _ in range(rng.choice((1, 1, 2)))]
        if name.startswith(("get_movie", "get_person")) and rng.random() < 0.5:
            args.append(_where(rng))
        line = f"{rng.choice(('', '', 'ALL ', 'ALL, ALL ', '2 '))}{name}({', '.join(args)}){_tail(rng)}"
    return f"AVG({line})" if rng.random() < 0.1 else line


def _where(rng: random.Random) -> str:
    def one() -> str:
        op = rng.choice(("eq", "neq", "ge", "le", "gt", "lt"))
        return f"{op}({rng.choice(KEYS)}, {rng.choice((*NAMES, *KEYS, *TIMES))})"

    kind = rng.random()
    if kind < 0.3:
        return "None"
    return one() if kind < 0.8 else f"[{one()}, {one()}]"


def _tail(rng: random.Random) -> str:
    key = rng.choice(("", f"[{rng.choice(KEYS)}]"))
    return key + rng.choice(("", "", "[len]", '["len"]', f"[:{rng.randint(0, 3)}]"))


def behind_a_server(graph: FolderBackend) -> ServerBackend:
    """The same graph as the mock API's endpoints give it, without HTTP."""
    served = httpx.ASGITransport(application(MockApi(graph.tables)))

    async def ask(path: str, body: Mapping[str, Any]) -> Any:
        async with httpx.AsyncClient(transport=served, base_url="http://graph") as client:
            answer = await client.post(path, json=dict(body))
        if answer.status_code == 200:
            return answer.json()["result"]
        if path in ABSENT_ON_500:
            return None
        raise GraphFault("bad_request", f"{path}: status {answer.status_code}")

    return ServerBackend(ask)


class Wrong(Exception):
    """A program that broke a promise of the language."""


def through(texts: Iterable[str], graph: FolderBackend, seed: int = 1) -> dict[str, Any]:
    """Outcomes of these programs on this graph, every tenth one behind a server.

    Raises Wrong, with the program, for the first that breaks a promise."""
    server = behind_a_server(graph)
    rng, parse = random.Random(seed), parser(smallgraph.GRAMMAR)
    lines: Counter[str] = Counter()
    count, slowest = 0, 0.0
    start = time.perf_counter()
    for text in texts:
        asked, domain = rng.choice(ASKED), rng.choice(DOMAINS)
        begun = time.perf_counter()
        try:
            program = parse(text)
            sound = Program(tuple(line for line in program.lines if not isinstance(line, Bad)))
            same = parse(print_program(sound)) == sound
            asking = graph if count % 10 else server
            results = asyncio.run(run(program, asking, moment(asked), domain))
        except Exception as e:
            raise Wrong(f"{type(e).__name__}: {e}: at {asked!r} in {domain!r}: {text!r}") from e
        if not same or len(results) != len(program.lines):
            raise Wrong(f"it prints as another, or a line has no result: {text!r}")
        for result in results:
            if result.fault is not None and not (result.fault.reason and result.fault.detail):
                raise Wrong(f"a fault without its reason: {text!r}")
            lines[result.fault.reason if result.fault else "found" if result.values else "nothing"] += 1
        slowest, count = max(slowest, time.perf_counter() - begun), count + 1
    took = time.perf_counter() - start
    return {
        "programs": count,
        "lines": dict(lines.most_common()),
        "seconds": round(took, 1),
        "slowest_ms": round(slowest * 1000),
    }


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--programs", type=int, default=100_000, metavar="N")
    args.add_argument("--seed", type=int, default=1)
    given = args.parse_args()
    try:
        found = through(programs(given.programs, given.seed), smallgraph.build(), given.seed)
    except Wrong as e:
        print(json.dumps({"wrong": str(e)}))
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
