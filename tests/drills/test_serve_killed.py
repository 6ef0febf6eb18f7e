"""The endpoint on a real Ray Serve, while its processes are killed or told to end: on starts of its own."""

import shutil
import signal
from dataclasses import replace

import pytest
from endpoint import live_endpoint

from raypipe.store import Store

pytestmark = [pytest.mark.ray, pytest.mark.drill]


@pytest.fixture(scope="module")
def running(released, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    shutil.copytree(released.store.uri, folder / "store")
    own = replace(released, store=Store.open(str(folder / "store")))
    with live_endpoint(own, folder / "serve.log") as made:
        yield made


@pytest.mark.parametrize("name", ["embed", "rerank"])
def test_a_killed_model_replica_costs_no_request(running, name):
    [victim] = running.replicas(name)
    came = running.under_load(300, 8, victim.kill)
    assert {c.status for c in came} == {200}
    running.settled()


def test_a_killed_gateway_costs_at_most_what_was_in_flight_there_and_one_more_try_loses_nothing(running):
    victim, _ = running.replicas("gateway")
    came = running.under_load(300, 8, victim.kill, retries=1)
    assert {c.status for c in came} == {200}
    assert sum(c.tries > 1 for c in came) <= 8, "no more than were in flight"
    running.settled()


def test_with_every_gateway_killed_it_says_so_and_comes_back(running):
    def kill_all():
        for victim in running.replicas("gateway"):
            victim.kill()

    came = running.under_load(100, 8, kill_all, timeout=60)
    assert {c.status for c in came} <= {0, 200, 500, 503}
    running.settled()
    assert {c.status for c in running.fire(20, 4)} == {200}


def test_on_sigterm_it_finishes_the_requests_in_flight(released, tmp_path):
    with live_endpoint(released, tmp_path / "serve.log") as running:
        came = running.under_load(200, 8, lambda: running.process.send_signal(signal.SIGTERM), timeout=30)
        assert {c.status for c in came} <= {200, 404, 503, 0}, "refused afterwards, never broken off"
        assert sum(c.status == 200 for c in came) > 200 / 10, "and more than were answered before"
        assert running.process.wait(90) == 143, running.log.read_text()
