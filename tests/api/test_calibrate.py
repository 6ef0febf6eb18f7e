"""A new store's plan says seconds once this machine has measured rates, and none for other machines."""

import json
from dataclasses import replace

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.cli.main import main
from raypipe.api.plans import calibrate
from raypipe.api.run import chip
from raypipe.api.session import Session, from_environment
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError
from raypipe.runs.cluster.capacity import is_here

SETTINGS = replace(from_environment(), conf=Conf((ROOT / "conf",)))


def test_only_a_file_of_one_machine_without_more_gpus_can_be_for_this_one():
    laptop = Session(SETTINGS).cluster_file()
    [machine] = laptop.machines
    assert is_here(laptop)
    assert not is_here(replace(laptop, grows=True))
    assert not is_here(replace(laptop, machines=(replace(machine, nodes=2),)))
    assert not is_here(replace(laptop, machines=(replace(machine, gpus=64.0, gpu_gib=80.0),)))
    assert not is_here(Session(SETTINGS, cluster="autoscaling").cluster_file())


def test_this_machine_names_what_it_computes_with():
    assert chip() == chip() and isinstance(chip(), str)


def test_calibrating_for_other_machines_is_refused_before_anything_runs():
    settings = from_environment({"RAYPIPE_CONF": str(ROOT / "conf")})
    with pytest.raises(
        ConfError, match=r"--calibrate: .* autoscaling is for others\. An eval there measures"
    ):
        calibrate("local", Session(settings, cluster="autoscaling"))


@pytest.mark.drill
@pytest.mark.slow
def test_a_calibrated_machine_knows_seconds_of_a_store_that_has_no_run(
    world, tmp_path, capsys, monkeypatch, local_ray
):
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    wanted = [
        "plan",
        str(SUPPORT / "fakes.yaml"),
        "--data",
        str(world),
        "--store",
        str(tmp_path / "store"),
    ]

    def planned(*more):
        assert main([*wanted, "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    assert {s["cost"]["seconds"] is None for s in planned()["steps"]} == {True}
    assert all(s["cost"]["seconds"] is not None for s in planned("--calibrate")["steps"])
    again = planned()
    assert again["cost"]["hours"] is not None and again["cost"]["usd"] is None
    assert planned("--cluster", "autoscaling")["cost"]["hours"] is None
