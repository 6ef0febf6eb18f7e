"""Merges the segments of a store and is killed.

    killed_merge.py STORE TEXTS PASSAGES POSTINGS LENGTHS EVENT:FUNCTION:N

SIGKILL at the Nth call or return of a function.
"""

import os
import signal
import sys

from raypipe.store import Store
from raypipe.store.inverter import Inverter, merge_segments


def main(store: str, texts: str, passages: str, postings: str, lengths: str, at: str) -> None:
    event, function, number = at.split(":")
    opened, seen = Store.open(store), 0

    def profile(frame, what, _):
        nonlocal seen
        if frame.f_code.co_name == function and what == event and "/store/" in frame.f_code.co_filename:
            seen += 1
            if seen == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    merge_segments(opened, postings, lengths, Inverter(opened, texts, passages, "plain"))
    sys.setprofile(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
