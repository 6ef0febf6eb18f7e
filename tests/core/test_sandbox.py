"""`core.sandbox`: a function of bytes under limits. Time, kills and threads: `test_page_parser`."""

import time
import zlib

import pytest

from raypipe.core.sandbox import Refused, Sandbox, SandboxLimits

LIMITS = SandboxLimits(wall_s=20.0, cpu_s=5.0, memory_bytes=60 << 20)


@pytest.fixture
def sandbox():
    made = Sandbox("zlib:decompress", LIMITS)
    yield made
    made.close()


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


def test_a_function_that_cannot_be_imported_is_a_crash_of_every_request_and_no_hang():
    sandbox = Sandbox("no_such_module:f", LIMITS)
    started = time.monotonic()
    (refused,) = sandbox.run([(b"x",)])
    assert refused.reason == "crash" and "code 1" in refused.detail
    assert time.monotonic() - started < 20
