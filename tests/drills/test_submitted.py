"""`bench/drills/submitted.py`: a submitted job with its own packages, a bucket and a memory limit."""

import json
import subprocess
import sys

import pytest
from checkout import BENCH


@pytest.mark.ray
@pytest.mark.drill
@pytest.mark.timeout(1200)
def test_a_job_from_a_new_home_answers_from_a_bucket_with_a_step_of_a_wheel():
    pytest.importorskip("moto", reason="moto is not installed here")
    command = [sys.executable, str(BENCH / "drills/submitted.py"), "--questions", "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["loud"] == 6 and found["computed"][1] == 0 and found["objects"] > 10
