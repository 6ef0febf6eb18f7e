"""Ten kills of `bench/drills/kills.py`: SIGKILLs to driver, workers and raylet leave equal tables."""

import json
import subprocess
import sys

import pytest
from checkout import BENCH

KILLS = BENCH / "drills/kills.py"


@pytest.mark.ray
@pytest.mark.drill
@pytest.mark.timeout(1200)
def test_ten_kills_leave_the_tables_of_an_undisturbed_run(tmp_path):
    out = tmp_path / "kills.jsonl"
    args = ["--kills", "10", "--seed", "1", "--out", str(out)]
    done = subprocess.run([sys.executable, str(KILLS), *args], capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    trials = [json.loads(line) for line in out.read_text().splitlines()]
    killed = [k for t in trials for k in t["killed"]]
    assert len(killed) >= 10 and all(t["equal"] for t in trials)
    assert {k.split()[0] for k in killed} == {"driver", "worker", "raylet"}
