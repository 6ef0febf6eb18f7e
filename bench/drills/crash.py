"""Ends a whole life of a store after each of its write events, and lets the same command run again.

    python bench/drills/crash.py                          # every point, two at a time: `make drill`
    python bench/drills/crash.py --points 20 --seed 1     # as many, drawn by a seed
    python bench/drills/crash.py --part 1/4               # every fourth point: four such runs try all
    python bench/drills/crash.py --at 117                 # one of them, with where the error was raised

First a life (`life.py`: ingest, evals, promote, prune) runs undisturbed in a process of its own. After each
write event (`write_events.py`: a commit, delete, index, merge or tag of Lance; a rename, link, sync or
removal of a file) the files of its folder are kept: that is what a kill there leaves. Where one call writes
or removes several files, states between them are made of that: files without the manifest that names them,
half of what is to be removed. From the same states come those of a power cut: files that the last few events
wrote and nothing synced are gone, cut or empty.

Then each of these states is laid out in a folder of its own, the command that was ended runs again, and so
do those after it. After each command all tables must equal those of the undisturbed life, row for row; at the
end the same files must be there, by kind, and none that no table names; no command may ask models for more
than its plan says, and nothing may be asked a second time but one call, that which had no result yet.

Prints a line of JSON for each point that fails, and one for the drill; exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from folder_states import Listing, Recorder, State
from life import COMMANDS, Contents, Life, contents, counted, differences, files, write_world
from write_events import watched

from raypipe.core.records import digest
from raypipe.store.files import ANSWER_KEYS, RECORDS, boot

JOBS = 2
CUT = ("gone", "cut", "empty")  # what becomes of files that were not synced
HOWS = ("killed", "within", *CUT)
MANIFEST, KEYS = f"store/{RECORDS}/*-*.json", f"store/{ANSWER_KEYS}/*.arrow"
HINT = "/_versions/latest_version_hint.json"
AGO_S = 3600.0  # that a life was ended: what a living process may still be writing is no older than a minute
LATEST = (1, 4, 16)  # events whose unsynced files a power cut takes; what is older the system has written


@dataclass(frozen=True, slots=True)
class Point:
    """A state in which a life is ended, and what of it the disk keeps."""

    event: str
    command: int
    asked: int
    listing: Listing
    how: str  # one of HOWS


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What a life leaves that nothing ends."""

    after: tuple[Contents, ...]  # by command
    files: Mapping[str, int]
    asked: tuple[int, ...]  # by command: inputs that models got
    largest: int  # of them in one call
    events: int
    points: int


def points(states: Sequence[State], seed: int) -> Iterator[Point]:
    """Every point: kills after events, kills within them, power cuts."""
    rng = random.Random(seed)
    for number, state in enumerate(states):
        before = states[number - 1].listing if number else {}
        if state.listing == before:
            continue  # a sync, or what changed something and took it back
        for listing in _within(state.event, before, state.listing):
            if listing not in (before, state.listing):
                yield Point(state.event, state.command, state.asked, listing, "within")
        yield Point(state.event, state.command, state.asked, state.listing, "killed")
        how, latest = rng.choice(CUT), rng.choice(LATEST)
        old = states[number - latest].listing if number >= latest else {}
        if lost := {p for p in state.unsynced if old.get(p) != state.listing[p]}:
            yield Point(state.event, state.command, state.asked, _lost(state.listing, lost, how), how)


def _within(event: str, before: Listing, after: Listing) -> Iterator[Listing]:
    """States between two, as a kill inside the call leaves them."""
    changed = sorted(p for p in after if not p.endswith("/") and before.get(p) != after[p])
    manifests = [p for p in changed if p.endswith(".manifest")][::-1]  # a later version has a smaller name
    hints = [p for p in changed if p.endswith(HINT)]
    for shown in range(len(manifests) + 1):  # written as NAME#1, linked; at last the hint is replaced
        listing = {p: key for p, key in after.items() if p not in {*manifests[shown:], *hints}}
        listing |= {p: before[p] for p in hints if p in before}
        yield listing | {f"{p}#1": f"cut:{after[p]}" for p in manifests[shown : shown + 1]}
    hidden = {*manifests, *hints}
    for path in (p for p in changed if "/data/" in p or "/_deletions/" in p):
        listing = {p: key for p, key in after.items() if p not in {*hidden, path}}
        listing |= {p: before[p] for p in hints if p in before}
        yield listing | {str(Path(path).with_name(".tmpAbCdEf")): f"cut:{after[path]}"}
    gone = [p for p in before if p not in after and not p.endswith("/")]
    # Lance removes manifests after what they name; a folder is removed in no order.
    gone.sort(key=lambda p: (p.endswith(".manifest"), p))
    half = len(gone) // 2
    for kept in (gone[half:], gone[:half]) if "remove_folder" in event else (gone[half:],) if half else ():
        folders = {f"{d}/" for p in kept for d in Path(p).parents}
        yield after | {p: before[p] for p in kept} | {f: "" for f in folders if f in before}


def _lost(listing: Listing, lost: set[str], how: str) -> Listing:
    """Without the bytes of some files."""
    if how == "gone":
        return {p: key for p, key in listing.items() if p not in lost}
    return {p: f"{how}:{key}" if p in lost else key for p, key in listing.items()}


def lay_out(point: Point, pool: Path, folder: Path) -> None:
    """Makes a folder as a point says. Files of tables are links into the pool: nothing writes to them. After
    a power cut the machine was started again: notes that name the time since its start name another, and the
    minute is over for which a lease of another start is waited for."""
    listing, then = point.listing, time.time() - AGO_S
    for path in sorted(listing):
        target, (how, _, key) = folder / path, listing[path].rpartition(":")
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            continue
        if point.how in CUT and "/_lease/" in path:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if how:
            content = (pool / key).read_bytes()
            target.write_bytes(content[: len(content) // 2] if how == "cut" else b"")
        elif ".lance/" in path:
            os.link(pool / key, target)
        else:
            content = (pool / key).read_bytes()
            if point.how in CUT:
                content = content.replace(boot().encode(), b"another")
            target.write_bytes(content)
        if ".lance/" not in path:
            os.utime(target, (then, then))


def record(home: Path, seed: int) -> None:
    """The undisturbed life, and a file for each point. In a process of its own: then the leases that the
    states hold name one that has ended."""
    write_world(home / "world")
    life = Life(home / "undisturbed", home / "world")
    life.kept.mkdir(parents=True)
    (home / "pool").mkdir()
    recorder = Recorder(life.kept, home / "pool")
    after, asked, largest = [], [], 0

    for number, command in enumerate(COMMANDS):
        with counted() as calls, watched(life.kept, recorder.seen, recorder.synced):
            recorder.command, recorder.calls = number, calls
            getattr(life, command)()
        after.append(contents(life.store))
        asked.append(calls.total)
        largest = max(largest, calls.largest)
    (home / "points").mkdir()
    count = 0
    for point in points(recorder.states, seed):
        (home / "points" / f"{count}").write_bytes(pickle.dumps(point))
        count += 1
    whole = Undisturbed(tuple(after), dict(files(life)), tuple(asked), largest, recorder.events, count)
    (home / "whole").write_bytes(pickle.dumps(whole))


def tried(home: Path, number: int, shows: bool = False) -> dict[str, Any]:
    """The verdict on one point."""
    point: Point = pickle.loads((home / "points" / f"{number}").read_bytes())
    whole: Undisturbed = pickle.loads((home / "whole").read_bytes())
    life = Life(home / f"point-{number}", home / "world")
    lay_out(point, home / "pool", life.kept)
    start = time.perf_counter()
    wrong = []
    try:
        for command in range(point.command, len(COMMANDS)):
            wrong += _run(life, command, whole, point.asked if command == point.command else 0)
        found = files(life)
        # An eval that was ended after its run was kept is, done again, one run more.
        runs = found[MANIFEST] - whole.files[MANIFEST]
        expected = {**whole.files, **{name: whole.files[name] + (runs == 1) for name in (MANIFEST, KEYS)}}
        for name in sorted(found.keys() | expected.keys()):
            if found[name] != expected.get(name, 0):
                wrong.append(f"files {name}: {found[name]}, undisturbed {expected.get(name, 0)}")
    except Exception as e:  # the verdict names it; other points are tried all the same
        wrong.append(f"{COMMANDS[command]} raised {type(e).__name__}: {str(e)[:600]}")
        if shows:
            traceback.print_exc()
    if not shows:
        shutil.rmtree(life.folder)
    return {
        "point": number,
        "how": point.how,
        "command": COMMANDS[point.command],
        "event": point.event,
        "wrong": wrong,
        "seconds": round(time.perf_counter() - start, 2),
    }


def _run(life: Life, command: int, whole: Undisturbed, before: int) -> list[str]:
    """What is wrong after one command. `before`: inputs that models got until it was ended."""
    name = COMMANDS[command]
    with counted() as calls:
        asked = getattr(life, name)()
    wrong = [f"after {name}, {d}" for d in differences(whole.after[command], contents(life.store))]
    wrong += [f"{name}: step {step} computed more than was planned" for step in asked.over]
    if calls.total > asked.planned:
        wrong.append(f"{name}: models got {calls.total} inputs, {asked.planned} were planned")
    twice = before + calls.total - whole.asked[command]
    if twice > whole.largest:
        wrong.append(f"{name}: {twice} inputs were asked twice, {whole.largest} are the most of one call")
    return wrong


def drill(home: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Every verdict; failures are printed as they come."""
    fresh = multiprocessing.get_context("spawn")  # Lance is not to be forked
    recording = fresh.Process(target=record, args=(home, given.seed))
    recording.start()
    recording.join()
    if recording.exitcode != 0:
        raise SystemExit(f"the undisturbed life ended with {recording.exitcode}")
    whole: Undisturbed = pickle.loads((home / "whole").read_bytes())
    chosen = list(range(whole.points))
    if given.how:
        hows = {n: pickle.loads((home / "points" / f"{n}").read_bytes()).how for n in chosen}
        chosen = [n for n in chosen if hows[n] in given.how]
    first, of = given.part
    chosen = chosen[first - 1 :: of]
    if given.points and given.points < len(chosen):
        chosen = random.Random(given.seed).sample(chosen, given.points)
    if given.at is not None:
        verdict = tried(home, given.at, shows=True)
        print(json.dumps(verdict, indent=1))
        return [verdict]
    verdicts: list[dict[str, Any]] = []
    start = time.perf_counter()
    print(
        f"{whole.events} write events, {whole.points} points of them, {len(chosen)} to be tried",
        file=sys.stderr,
        flush=True,
    )
    with ProcessPoolExecutor(given.jobs, mp_context=fresh) as pool:
        for one in as_completed([pool.submit(tried, home, number) for number in chosen]):
            verdicts.append(one.result())
            if verdicts[-1]["wrong"]:
                print(json.dumps(verdicts[-1]), flush=True)
            if len(verdicts) % 20 == 0:
                spent = time.perf_counter() - start
                left = spent / len(verdicts) * (len(chosen) - len(verdicts))
                failed = sum(bool(v["wrong"]) for v in verdicts)
                say = f"{len(verdicts)}/{len(chosen)} points, {failed} failed, {left / 60:.1f} min to go"
                print(say, file=sys.stderr, flush=True)
    _check_pool(home / "pool")
    return verdicts


def _check_pool(pool: Path) -> None:
    """Raises SystemExit if a life wrote to a file that others share: then no verdict holds."""
    if spoilt := [f.name for f in pool.iterdir() if digest(f.read_bytes()) != f.name]:
        raise SystemExit(f"{len(spoilt)} shared files were written to: lay_out must copy them")


def part(text: str) -> tuple[int, int]:
    """A number and of how many: "1/4"."""
    first, _, of = text.partition("/")
    if not 1 <= int(first) <= int(of):
        raise ValueError(text)
    return int(first), int(of)


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--points", type=int, metavar="N", help="this many, drawn by the seed; default: all")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--how", nargs="+", choices=HOWS, help="only points of these kinds")
    args.add_argument("--jobs", type=int, default=JOBS, metavar="N", help="processes that try points")
    args.add_argument(
        "--part", type=part, default=(1, 1), metavar="K/N", help="every N-th point, from the K-th"
    )
    args.add_argument("--at", type=int, metavar="POINT", help="only this one")
    given = args.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="raypipe-crash-") as temporary:
        verdicts = drill(Path(temporary), given)
    failed = [v for v in verdicts if v["wrong"]]
    how: dict[str, int] = {}
    for v in verdicts:
        how[v["how"]] = how.get(v["how"], 0) + 1
    summary = {
        "points": len(verdicts),
        "how": how,
        "failed": len(failed),
        "seed": given.seed,
        "seconds": round(time.perf_counter() - start),
    }
    print(json.dumps(summary))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
