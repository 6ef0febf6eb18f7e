"""A step whose output moves raises its version; a step whose file moves alone is worth one line."""

import warnings

import golden
import pytest
import yaml

from raypipe.recipes.wiring import STEPS


@pytest.fixture(scope="module")
def now():
    return golden.locked()


def lock():
    return yaml.safe_load(golden.LOCK.read_text())


def test_every_step_is_locked():
    assert set(lock()) == set(STEPS)


@pytest.mark.parametrize("verb", STEPS)
def test_output_that_moved_has_a_new_version(now, verb):
    then, found = lock()[verb], now[verb]
    if found["output"] != then["output"]:
        assert found["version"] > then["version"], (
            f"{verb} has another output, but its version is still {then['version']}: raise it, then run "
            "`python tests/support/golden.py`"
        )
        pytest.fail(f"{verb} has version {found['version']}: run `python tests/support/golden.py` to lock it")
    assert found["version"] == then["version"], (
        f"{verb}: same output, other version: run `python tests/support/golden.py`"
    )
    if found["file"] != then["file"]:
        warnings.warn(f"{verb}: its file changed, its output did not", stacklevel=1)
