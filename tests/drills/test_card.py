"""The small form of `bench/drills/card.py`: the whole job, killed twice, a node lost, a prompt changed."""

import json
import subprocess
import sys

import pytest
from checkout import BENCH


@pytest.mark.ray
@pytest.mark.drill
@pytest.mark.timeout(1500)
def test_a_killed_job_asks_nothing_twice_and_a_changed_prompt_costs_its_own_calls(tmp_path):
    out = tmp_path / "card.json"
    words = ["--questions", "24", "--pages", "10", "--folder", str(tmp_path / "job"), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, str(BENCH / "drills/card.py"), *words], capture_output=True, text=True, timeout=1400
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(out.read_text())
    assert found["kills"] == 3 and found["equal_calls_twice"] == 0 and found["live"] == found["first_run"]
    assert found["planned_chats"]["generate:web"] == found["chats"]["second"] > 0
    assert found["steps"]["second"]["embed"]["computed"] == 0 < found["steps"]["first"]["embed"]["computed"]
    assert all(found[name] > 0 for name in ("driver_mb", "object_store_mb", "store_bytes"))
