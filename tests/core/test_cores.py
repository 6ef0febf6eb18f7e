"""CPUs of a container: as many as its quota gives, however many are seen."""

import os

import pytest

from raypipe.core.environment import cores

SEEN = len(os.sched_getaffinity(0))
V2, V1 = "0::/kubepods/pod7/app\n", "11:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (V2, {"kubepods/pod7/app/cpu.max": "100000 100000"}, 1),
        (V2, {"kubepods/pod7/cpu.max": "50000 100000", "kubepods/pod7/app/cpu.max": "max 100000"}, 1),
        (V2, {"cpu.max": "20000 100000"}, 1),  # as a container sees its own
        (V2, {"kubepods/pod7/app/cpu.max": "max 100000"}, SEEN),
        (V2, {"kubepods/pod7/app/cpu.max": "6400000 100000"}, SEEN),
        (V1, {"cpu/docker/ab/cpu.cfs_quota_us": "90000", "cpu/docker/ab/cpu.cfs_period_us": "100000"}, 1),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, SEEN),
        (V1, {}, SEEN),
        ("", {}, SEEN),
    ],
)
def test_the_quota_of_a_cgroup_counts_where_it_is_less_than_what_is_seen(tmp_path, cgroup, files, expected):
    of_cgroups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": cgroup, **of_cgroups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cores(tmp_path) == expected
