"""A machine without memory for parsers, as a container at its limit: the kernel kills each that starts."""

import threading
from contextlib import contextmanager, suppress

import psutil


@contextmanager
def parsers_killed():
    """Kills each child of this process that parses pages or files, until the block ends."""
    over, me = threading.Event(), psutil.Process()

    def kill():
        while not over.wait(0.02):
            for child in me.children():
                with suppress(psutil.Error):
                    if "raypipe.core.sandbox" in child.cmdline():
                        child.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()
