"""Indexes the collection of a store and is killed on the way: `killed_build.py FOLDER EVENT:FUNCTION:N`.

SIGKILL at the Nth call or return of a function of the store, counted from where postings are begun.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from collection_bench import RANKS, Bench


def main(folder: str, at: str) -> None:
    event, function, number = at.split(":")
    pipe = Bench(Path(folder), Path(folder)).pipeline(RANKS)
    seen, begun = 0, False

    def profile(frame, what, _):
        nonlocal seen, begun
        name = frame.f_code.co_name
        begun = begun or (name == "postings" and "corpus_builds" in frame.f_code.co_filename)
        if begun and name == function and what == event and "/store/" in frame.f_code.co_filename:
            seen += 1
            if seen == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    pipe.index(None)
    sys.setprofile(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
