"""A bound on CPU time as a multiple of what a fixed loop takes in the same process at the same time."""

import time
from contextlib import contextmanager


def loop_s():
    """Returns the CPU seconds of a million squares: .05 on an idle core, twice that on a shared one."""
    start = time.process_time()
    sum(i * i for i in range(1_000_000))
    return time.process_time() - start


@contextmanager
def within(loops):
    """A block that may take as much CPU time as so many loops, before it or after it."""
    before, start = loop_s(), time.process_time()
    yield
    took = time.process_time() - start
    assert took < loops * max(before, loop_s()), f"{took:.2f} s"
