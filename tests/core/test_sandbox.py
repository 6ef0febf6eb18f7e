"""`core.sandbox`: a function of bytes under limits, and whose fault it is that its process ends. Time and
threads: `test_page_parser`."""

import itertools
import time
import zlib

import pytest

from raypipe.core.errors import WorkerBroken
from raypipe.core.sandbox import TRIES, Refused, Sandbox, SandboxLimits

LIMITS = SandboxLimits(wall_s=20.0, cpu_s=5.0, memory_bytes=60 << 20)
REASONS = {"killed": "crash", "gone": "crash", "no memory": "memory", "throttled": "timeout"}


@pytest.fixture
def sandbox():
    made = Sandbox("zlib:decompress", LIMITS)
    yield made
    made.close()


class Sick:
    """A sandbox on a machine that may be sick, and what its children were asked."""

    def __init__(self, folder):
        limits = SandboxLimits(wall_s=20.0, cpu_s=0.5, memory_bytes=1 << 30)
        self.folder, self.box = folder, Sandbox("sick_machine:answer", limits, f"{folder}|probe".encode())

    def run(self, *words, before=None):
        requests = [(f"{self.folder}|".encode(), word.encode()) for word in words]
        answers = self.box.run(requests, before=before and (f"{self.folder}|{before}".encode(),))
        return [a.decode() if isinstance(a, bytes) else (a.reason, a.transient) for a in answers]

    def asked(self):
        return (self.folder / "diary").read_text().split("\n")[:-1]


@pytest.fixture
def sick(tmp_path):
    made = Sick(tmp_path)
    yield made
    made.box.close()


def test_a_function_of_bytes_answers_each_request_in_order(sandbox):
    texts = [b"", b"one", b"two" * 500_000]
    packed = [zlib.compress(t) for t in texts]
    assert sandbox.run([(p[:1], p[1:]) for p in packed]) == texts
    assert sandbox.run([]) == []


def test_what_the_function_raises_is_the_requests_refusal_alone(sandbox):
    bad, good = sandbox.run([(b"no zlib",), (zlib.compress(b"fine"),)])
    assert isinstance(bad, Refused) and (bad.reason, bad.transient) == ("error", False)
    assert "incorrect header" in bad.detail and good == b"fine"


@pytest.mark.slow
def test_a_request_that_needs_too_much_memory_is_refused_and_the_next_is_answered(sandbox):
    bomb = zlib.compress(bytes(200 << 20))
    refused, good = sandbox.run([(bomb,), (zlib.compress(b"fine"),)])
    assert refused.reason == "memory" and str(LIMITS.memory_bytes) in refused.detail
    assert good == b"fine"


def test_a_function_that_cannot_be_imported_is_no_requests_fault_and_no_hang():
    sandbox = Sandbox("no_such_module:f", LIMITS)
    started = time.monotonic()
    with pytest.raises(
        WorkerBroken, match=r"no_such_module:f: a child process failed .* code 1\. No row is blamed"
    ):
        sandbox.run([(b"x",)])
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("way", REASONS)
def test_a_request_that_ends_its_children_is_refused_for_good_once_a_probe_passed(sick, way):
    assert sick.run("one", way, "two") == ["one", (REASONS[way], False), "two"]
    asked = [word for word in sick.asked() if word != "two"]
    assert asked == ["one", *[way, "probe"] * TRIES]


@pytest.mark.drill
@pytest.mark.parametrize("way", REASONS)
def test_a_machine_that_ends_every_child_blames_no_request_and_is_asked_again_when_well(sick, way):
    (sick.folder / "sick").write_text(way)
    for _ in range(2):
        with pytest.raises(WorkerBroken, match=f"known to work: {REASONS[way]}: .*No row is blamed"):
            sick.run("one", "two")
    asked = [word for word in sick.asked() if word != "two"]  # a child without memory reads on
    after = {b for a, b in itertools.pairwise(asked) if a == "one"}
    assert after == {"probe"}, "after a child has ended the probe goes first"
    (sick.folder / "sick").unlink()
    assert sick.run("one", "two") == ["one", "two"]


def test_a_request_that_the_system_kills_for_want_of_memory_is_pending_and_the_others_are_done(sick):
    assert sick.run("large", "one") == ["large", "one"]
    sick.box.close()
    (sick.folder / "room").write_text(str(80 << 20))
    assert sick.run("one", "large", "two") == ["one", ("crash", True), "two"]
    (sick.folder / "room").unlink()
    assert sick.run("large") == ["large"]


def test_what_goes_before_is_asked_of_each_new_child_once(sick):
    assert sick.run("one", "gone", "two", before="open") == ["one", ("crash", False), "two"]
    assert sick.asked() == ["open", "one", *["gone", "probe", "open"] * TRIES, "two"]
