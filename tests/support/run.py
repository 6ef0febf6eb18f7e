#!/usr/bin/env python
"""`make quick`, `make test` and `make test-all`: pytest twice, and one closing line for both.

One run takes what needs neither Ray nor an engine, shared out over the cores. The other takes, one test after
another, what starts Ray, an engine or a browser. It waits for processes two fifths of its time, so both run
at once; what the second prints comes after the first. `--quick` runs the first alone, and what is marked
`slow` not at all; `--all` also runs what is marked `drill`, and one run after the other: drills want the
machine for themselves. All other arguments are pytest's. The last line sums up both runs as pytest's own
does; the exit status is that of the first run that failed.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import timedelta
from pathlib import Path

ALONE = "ray or engine or browser"
TESTS = Path(__file__).parents[1]
FIXTURES = ("local_ray", "team")  # conftest.py marks who uses them
SLOWEST = 25
NONE = 5  # pytest's status when no test was chosen
INTERRUPTED = 2  # and after Ctrl-C


def marked(markers):
    """Returns the files whose tests may have such a marker: pytest reads no others."""
    mark = re.compile(rf"\b({'|'.join([*markers.split(' or '), *FIXTURES])})\b")
    return [str(f) for f in sorted(TESTS.rglob("test_*.py")) if mark.search(f.read_text(encoding="utf-8"))]


def halves(quick, everything, named):
    """Arguments of each run: how tests are shared out, and which. `named`: pytest is given its files."""
    cores = min(len(os.sched_getaffinity(0)), 8)  # each process finds all tests and builds its own fixtures
    left_out = f"{ALONE} or drill or slow" if quick else f"{ALONE} or drill"
    spread = ["-n", str(cores), "--dist", "worksteal", "-m", f"not ({left_out})"]
    chosen = f"{ALONE} or drill" if everything else f"({ALONE}) and not drill"
    files = [] if named else marked(f"{ALONE} or drill" if everything else ALONE)
    return [spread] if quick else [spread, ["-p", "no:xdist", "-m", chosen, *files]]


def results(file):
    """(seconds, test, outcome) of each test of a run, from its JUnit file."""
    try:
        cases = ET.parse(file).getroot().iter("testcase")
    except (OSError, ET.ParseError):
        return []  # the run ended before it could write one; its status says that it failed
    found = []
    for case in cases:
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        test = f"{case.get('classname')}::{case.get('name')}"
        found.append((float(case.get("time")), test, min(kinds, default="passed")))
    return found


def folder_lines(found):
    """Lines for docs/reliability.md: each folder of tests with its minutes and tests, the longest first."""
    minutes, tests = Counter(), Counter()
    for seconds, test, _ in found:
        folder = test.split("::")[0].split(".")
        name = "/".join(folder[:2]) if folder[0] == "tests" else "docs"
        minutes[name] += seconds / 60
        tests[name] += 1
    return [f"{spent:6.2f} {tests[name]:5,} {name}" for name, spent in minutes.most_common()]


def run_each(commands, env):
    """Exit status of each run, one after the other."""
    statuses = []
    for command in commands:
        statuses.append(subprocess.run(command, env=env).returncode)
        if statuses[-1] == INTERRUPTED:
            break
    return statuses


def run_both(commands, env):
    """Exit statuses of two runs at once. What the second prints is kept until the first has ended."""
    with tempfile.NamedTemporaryFile() as kept, open(kept.name, "rb") as printed:
        second = subprocess.Popen(commands[1], env=env, stdout=kept, stderr=subprocess.STDOUT)
        first = subprocess.run(commands[0], env=env).returncode
        over = False
        while not over:
            over = second.poll() is not None  # before the last look: nothing printed is missed
            sys.stdout.buffer.write(printed.read())
            sys.stdout.flush()
            time.sleep(0 if over else 1)
    return [first, second.returncode]


def closing(outcomes, status, seconds):
    """One line in the form of pytest's last."""
    words = {"failure": "failed", "passed": "passed", "skipped": "skipped", "error": "errors"}
    said = [f"{outcomes[kind]} {word}" for kind, word in words.items() if outcomes[kind]]
    if status and not (outcomes["failure"] or outcomes["error"]):
        said.append(f"pytest ended with status {status}")
    wall = timedelta(seconds=round(seconds))
    return f" {', '.join(said) or 'no tests ran'} in {seconds:.2f}s ({wall}) ".center(100, "=")


def main(given):
    quick, everything = "--quick" in given, "--all" in given
    args = [a for a in given if a not in ("--quick", "--all")]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    named = any(Path(a.split("::")[0]).exists() for a in args)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="raypipe-results-") as folder:
        files = [Path(folder) / f"{number}.xml" for number in range(2)]
        commands = [
            [sys.executable, "-m", "pytest", *half, f"--junit-xml={file}", *args]
            for half, file in zip(halves(quick, everything, named), files, strict=False)
        ]
        statuses = run_each(commands, env) if quick or everything else run_both(commands, env)
        found = [result for file in files for result in results(file)]
    print(f"\nThe {SLOWEST} slowest, with their share of fixtures:")
    for seconds, test, _ in sorted(found, reverse=True)[:SLOWEST]:
        print(f"{seconds:8.2f}s {test}")
    print("\nMinutes by folder, of both runs:")
    print(*folder_lines(found), sep="\n")
    failed = [s for s in statuses if s not in (0, NONE)]
    status = failed[0] if failed else NONE if set(statuses) == {NONE} else 0
    print(closing(Counter(kind for _, _, kind in found), status, time.monotonic() - began))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
