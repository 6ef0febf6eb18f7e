"""Places of engines in a cluster: the first ones of a job all or none, each further one by itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from raypipe.core.errors import ClusterTooSmall
from raypipe.models.engine_actors import Group, Needs


def held(place: Needs, name: str) -> PlacementGroup | None:
    """Asks for the place of one engine, without waiting; None for one that takes nothing. `name`: how the
    group's own begins, for those who look what waits."""
    bundle = {kind: n for kind, n in place.items() if n}
    return _group([bundle], name) if bundle else None


@contextmanager
def reserved(places: Sequence[Needs], wait_s: float, name: str = "engines") -> Iterator[list[Group | None]]:
    """Reserves resources for all engines at once, until the block ends: two jobs never hold half of what each
    needs. None for an engine that takes nothing. Raises ClusterTooSmall when other jobs hold the resources
    for longer than `wait_s`."""
    bundles = [{kind: n for kind, n in place.items() if n} for place in places]
    taken = [b for b in bundles if b]
    if not taken:
        yield [None] * len(places)
        return
    group = _group(taken, name)
    try:
        if not group.wait(wait_s):
            free = {k: v for k, v in ray.available_resources().items() if k in ("CPU", "GPU")}
            raise ClusterTooSmall(
                f"{len(taken)} engines need {taken} and did not get it within {wait_s:g} s: others hold it, "
                f"free is {free}. Wait for them, raise engines.wait_s, or lower `engines` in the cluster file"
            )
        places_of = iter(range(len(taken)))
        yield [(group, next(places_of)) if b else None for b in bundles]
    finally:
        remove_placement_group(group)


def _group(bundles: list[dict[str, float]], name: str) -> PlacementGroup:
    """A placement group; Ray refuses a name that another one of the namespace has."""
    return placement_group(bundles, strategy="PACK", name=f"{name}-{uuid.uuid4().hex}")
