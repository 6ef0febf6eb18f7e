"""Some writes of an eval that fail once, and a parser that is killed (`bench/drills/once.py`)."""

import json
import subprocess
import sys

import pytest
from checkout import BENCH


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_an_eval_whose_write_or_parser_failed_once_is_whole_after_the_next_and_drivers_exclude_each_other():
    command = [sys.executable, str(BENCH / "drills/once.py"), "--every", "45"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=880)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    summary = json.loads(ran.stdout.splitlines()[-1])
    assert summary["tried"] > 5 and summary["failed"] == 0
