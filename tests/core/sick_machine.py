"""What a child process does (`core.sandbox`) on a machine that a folder makes sick, or for a request that
ends it."""

import os
import signal
import time
from pathlib import Path

WAYS = ("killed", "throttled", "no memory", "stopped", "gone")


def answer(request):
    """A request has the folder and a word: one of WAYS, which it does to the child, or `say`. A file `sick`
    does so to every child, whatever is asked; `room` says how many bytes a child may have until it is killed.
    What was asked, and when, stands in `diary`."""
    folder, _, word = request.decode().rpartition("|")
    with open(f"{folder}/diary", "a") as diary:
        diary.write(f"{word}\n")
    sick = Path(folder, "sick")
    _suffer(sick.read_text() if sick.exists() else word, Path(folder, "room"))
    return word.encode()


def _suffer(way, room):
    if way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)  # what a kernel does that is out of memory
    elif way == "throttled":
        while True:
            pass
    elif way == "no memory":
        raise MemoryError
    elif way == "stopped":
        time.sleep(60)
    elif way == "gone":
        os._exit(3)
    elif way == "large":
        held = bytearray(100 << 20)
        _kill_over(room)
        del held
    _kill_over(room)


def _kill_over(room):
    """Kills this process where its memory was ever over the room there is, after a while as a kernel does."""
    status = Path("/proc/self/status").read_text().split()
    if room.exists() and int(status[status.index("VmHWM:") + 1]) << 10 > int(room.read_text()):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
