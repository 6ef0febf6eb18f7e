"""The small form of `bench/figures/planes.py`: three ways to the same answers."""

import json
import subprocess
import sys

import pytest
from checkout import BENCH


@pytest.mark.engine
@pytest.mark.ray
@pytest.mark.drill
@pytest.mark.timeout(1500)
def test_an_eval_a_script_of_ray_data_and_one_process_give_equal_replies():
    command = [sys.executable, str(BENCH / "figures/planes.py"), "--questions", "6", "--pages", "3"]
    done = subprocess.run([*command, "--rounds", "1"], capture_output=True, text=True, timeout=1400)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["questions"] == 6 and found["unequal"] == 0 and found["distinct"] > 1
    assert {"plane", "data", "process"} == set(found["ways"])
