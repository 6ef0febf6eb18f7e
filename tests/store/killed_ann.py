"""Builds an approximate index and is killed on the way: `killed_ann.py STORE TABLE EVENT:FUNCTION:N`.

SIGKILL at the Nth call or return of a function of Lance.
"""

import os
import signal
import sys

from raypipe.core.index import Approximate
from raypipe.store import Store
from raypipe.store.vector_search import build_ann


def main(store: str, table: str, at: str) -> None:
    event, function, number = at.split(":")
    opened, seen = Store.open(store), 0

    def profile(frame, what, _):
        nonlocal seen
        if frame.f_code.co_name == function and what == event and "/lance/" in frame.f_code.co_filename:
            seen += 1
            if seen == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    build_ann(opened, table, Approximate(index="ivf_rq", probes=1, refine=1, min_recall=0.0))
    sys.setprofile(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
