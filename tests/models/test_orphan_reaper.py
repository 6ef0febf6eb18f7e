"""The orphan reaper: children that outlive their parent are ended, however the parent went."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

PARENT = """
import subprocess, sys, time
from raypipe.models.orphan_reaper import OrphanReaper
reaper = OrphanReaper()
child = "import subprocess, sys, signal, time; {deaf}; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']); time.sleep(99)"
subprocess.Popen([sys.executable, "-c", child.format(deaf=sys.argv[1])])
time.sleep(0.5)
reaper.arm()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3)"])  # born later: none of its business
print("ready", flush=True)
if sys.argv[2] == "close":
    reaper.close()
    print("closed", flush=True)
time.sleep(99)
"""  # noqa: E501


def start(deaf: str, then: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, deaf, then], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    return parent, psutil.Process(parent.pid).children(recursive=True)


def running(processes: list[psutil.Process], what: str) -> list[psutil.Process]:
    """Those whose command line has `what`. A dead process that was not reaped has none."""
    found = []
    for process in processes:
        try:
            if what in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def gone(processes: list[psutil.Process], what: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while running(processes, what) and time.monotonic() < end:
        time.sleep(0.05)
    return not running(processes, what)


@pytest.mark.drill
@pytest.mark.slow
@pytest.mark.parametrize(
    "deaf", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"], ids=["polite", "deaf"]
)
def test_children_and_theirs_end_after_their_parent_was_killed(deaf):
    parent, processes = start(deaf, "wait")
    assert len(running(processes, "sleep(99)")) == 2 and running(processes, "orphan_reaper.py")
    parent.kill()
    parent.wait()
    assert gone(processes, "sleep(99)", 25)
    assert gone(processes, "orphan_reaper.py", 15), "the reaper ends with its work"


@pytest.mark.slow
def test_closing_ends_what_is_left_and_waits_for_it():
    parent, processes = start("pass", "close")
    try:
        assert parent.stdout is not None and parent.stdout.readline() == "closed\n"
        assert not running(processes, "sleep(99)")
        assert len(running(processes, "sleep(3)")) == 1, "children that were born later live on"
    finally:
        parent.kill()
        parent.wait()
