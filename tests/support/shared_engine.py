"""The session's engine, started as a job starts one, and what tests may do in its process."""

import asyncio
import time

import psutil

VLLM, REAPER = "VLLM::", "models/orphan_reaper.py"  # titles of vLLM's own processes, and who ends them


def living(*titles):
    """Living processes, by what their command line has: vLLM gives its own a title."""
    found = {}
    for process in psutil.process_iter():
        try:
            if any(title in " ".join(process.cmdline()) for title in titles):
                found[process.pid] = process
        except psutil.Error:
            continue
    return found


def ours(*titles):
    """Those of them that descend from this process."""
    below = {p.pid for p in psutil.Process().children(recursive=True)}
    return {pid: p for pid, p in living(*titles).items() if pid in below}


def engines_end(before, seconds=30):
    """Whether every engine that was not there before is gone, after some waiting."""
    end = time.monotonic() + seconds
    while (left := living(VLLM, REAPER).keys() - before) and time.monotonic() < end:
        time.sleep(0.2)
    return not left


class Inside:
    """Runs a test's own code on the event loop of the actor that holds the engine."""

    def __init__(self, ray, name):
        from raypipe.models import engine_actors

        self._ray, self._call = ray, engine_actors.find(name)._handle.__ray_call__

    def run(self, work):
        """What `await work(engine)` gives or raises there."""

        def call(actor):  # on a thread beside that loop
            loop = actor._engine._llm.output_handler.get_loop()
            return asyncio.run_coroutine_threadsafe(work(actor._engine), loop).result()

        try:
            return self._ray.get(self._call.remote(call))
        except self._ray.exceptions.RayTaskError as e:
            raise e.cause from e
