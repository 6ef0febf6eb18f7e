"""Engines that join a job and leave it while it runs: `engines.replicas` with `min` and `max`.

The job's first engines have their places all or none. Each further one has a placement group of its own,
asked for only where the nodes that there are leave the workers their room. One that dies is given up and
asked for again; all of them go where another job waits for its first engines, so that no two jobs hold half
of what each needs. A thread of the driver does this; workers learn of it by `models.engine_actors`.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group_table, remove_placement_group

from raypipe.models import engine_actors as engines
from raypipe.models.engine_actor import Make
from raypipe.models.engine_actors import LOOK_S, announce, held, withdraw

FIRST = "raypipe-first-engines"  # name of the placement group that a job's engines wait for
TURN_S = 1.0  # between two looks at what is there
MOST_FAILURES = 3  # starts of one engine that may fail; then it is started no more

log = logging.getLogger("raypipe.engines")


@dataclass(slots=True)
class _Slot:
    name: str
    place: engines.Needs
    make: Make
    group: Any = None  # its placement group, once it is asked for
    client: engines.Client | None = None  # once it is started
    loading: Any = None  # reference to its answer that it has loaded
    lives: Any = None  # reference that is ready when it has died; None: it takes no chats yet
    failures: int = 0


@dataclass(slots=True)
class Joining:
    slots: list[_Slot] = field(default_factory=list)

    def add(self, name: str, place: engines.Needs, make: Make) -> None:
        self.slots.append(_Slot(name, place, make))

    @contextmanager
    def running(self, room: Callable[[], int]) -> Iterator[None]:
        """Starts and ends engines until the block ends, and then ends all. `room`: how many there may be on
        the nodes that there are."""
        if not self.slots:
            yield
            return
        stop = threading.Event()
        work = (lambda: self._turn(room())), stop, TURN_S
        thread = threading.Thread(target=take_turns, args=work, name="joining engines", daemon=True)
        thread.start()
        with ExitStack() as ending:  # one that cannot be ended keeps none of the others
            for slot in self.slots:
                ending.callback(_give_up, slot)
            try:
                yield
            finally:
                stop.set()
                thread.join()

    def _turn(self, room: int) -> None:
        if others_wait():
            leaving = [slot for slot in self.slots if slot.group is not None]
            for slot in leaving:
                withdraw(slot.name)
            if any(slot.lives is not None for slot in leaving):
                time.sleep(2 * LOOK_S)  # until no worker sends them more
            for slot in leaving:
                _give_up(slot)
            return
        for number, slot in enumerate(self.slots):
            if slot.group is None:
                if number < room and slot.failures < MOST_FAILURES:
                    slot.group = held(slot.place, f"raypipe-engine-{slot.name}")
            elif slot.client is None:
                if placement_group_table(slot.group)["state"] == "CREATED":
                    where = slot.group, 0
                    slot.client = engines.start_actor(slot.name, slot.make, slot.place, where, stays=False)
                    slot.loading = slot.client.loading()
            elif slot.lives is None:
                self._loaded(slot)
            elif ray.wait([slot.lives], timeout=0)[0]:
                withdraw(slot.name)
                _give_up(slot)

    def _loaded(self, slot: _Slot) -> None:
        if not ray.wait([slot.loading], timeout=0)[0]:
            return
        try:
            ray.get(slot.loading)
        except RayError:  # the others serve; the first engines have shown that the model loads
            slot.failures += 1
            _give_up(slot)
            return
        assert slot.client is not None
        slot.lives = slot.client.lives()
        announce(slot.name, uuid.uuid4().hex)


def take_turns(turn: Callable[[], None], stop: threading.Event, every_s: float) -> None:
    """Takes a turn every so often until `stop` is set. One that raises is reported, the same trouble once as
    long as it lasts, and the next turn tries again: else no engine would join any more."""
    said = ""
    while not stop.wait(every_s):
        try:
            turn()
        except Exception as e:
            if (why := f"{type(e).__name__}: {e}") != said:
                log.warning(
                    "engines that join: expected a look at the cluster, found %s; it is tried again every "
                    "%g s, and the engines that are there keep working",
                    why, every_s,
                )  # fmt: skip
            said = why
        else:
            said = ""


def _give_up(slot: _Slot) -> None:
    if slot.lives is not None:
        withdraw(slot.name)
    if slot.client is not None:
        slot.client.close()
    if slot.group is not None:
        remove_placement_group(slot.group)
    slot.group = slot.client = slot.loading = slot.lives = None


def others_wait() -> bool:
    """Whether a job waits for the place of its first engines."""
    tables: Sequence[Any] = list(placement_group_table().values())
    return any(t["name"].startswith(FIRST) and t["state"] == "PENDING" for t in tables)
