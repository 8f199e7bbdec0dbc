"""The cores that a process may use, by files like those of the kernel."""

import os
from math import inf
from pathlib import Path

import pytest

from warmlog.cli.nodes.cores import available_cores, cpu_quota

MINE = len(os.sched_getaffinity(0))


class Machine:
    """The files of /proc/PID and of the control groups that they name, in a directory."""

    def __init__(self, directory: Path) -> None:
        self.process, self.groups = directory / "proc", directory / "cgroup"
        self.process.mkdir()
        self.groups.mkdir()

    def mount(self, kind: str, *, options: str = "rw", root: str = "/") -> None:
        line = f"25 24 0:22 {root} {self.groups} rw,nosuid shared:4 - {kind} cgroup {options}\n"
        with (self.process / "mountinfo").open("a") as mounts:
            mounts.write(f"24 1 8:1 / / rw - ext4 /dev/sda1 rw\n{line}")

    def belongs_to(self, *lines: str) -> None:
        (self.process / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def write(self, group: str, **files: str) -> None:
        directory = self.groups / group
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(("limit", "quota"), [("250000 100000", 2.5), ("50000 100000", 0.5), ("max 100000", inf)])
def test_a_quota_of_version_2_is_in_cores(machine: Machine, limit: str, quota: float) -> None:
    machine.mount("cgroup2")
    machine.belongs_to("0::/app")
    machine.write("app", cpu__max=limit)
    assert cpu_quota(machine.process) == quota


def test_the_smallest_quota_of_a_group_and_those_above_it_counts(machine: Machine) -> None:
    machine.mount("cgroup2")
    machine.belongs_to("0::/pod/app/worker")
    machine.write("pod", cpu__max="150000 100000")
    machine.write("pod/app", cpu__max="400000 100000")
    machine.write("pod/app/worker")
    machine.write("pod/other", cpu__max="10000 100000")
    assert cpu_quota(machine.process) == 1.5


@pytest.mark.parametrize(("limit", "quota"), [("300000", 3.0), ("-1", inf)])
def test_a_quota_of_version_1_is_that_of_the_cpu_controller(machine: Machine, limit: str, quota: float) -> None:
    machine.mount("cgroup", options="rw,cpu,cpuacct")
    machine.belongs_to("4:memory:/elsewhere", "3:cpu,cpuacct:/app", "0::/")
    machine.write("app", cpu__cfs_quota_us=limit, cpu__cfs_period_us="100000")
    machine.write("elsewhere", cpu__cfs_quota_us="1000", cpu__cfs_period_us="100000")
    assert cpu_quota(machine.process) == quota


@pytest.mark.parametrize(("path", "root"), [("/docker/abc", "/docker/abc"), ("/docker/abc", "/other"), ("/", "/")])
def test_the_group_of_a_container_may_be_the_mount_itself(machine: Machine, path: str, root: str) -> None:
    machine.mount("cgroup2", root=root)
    machine.belongs_to(f"0::{path}")
    machine.write(".", cpu__max="200000 100000")
    assert cpu_quota(machine.process) == 2.0


def test_without_control_groups_there_is_no_quota(machine: Machine) -> None:
    assert cpu_quota(machine.process) == inf
    assert available_cores(machine.process) == MINE


@pytest.mark.parametrize(("limit", "cores"), [("10000 100000", 1), ("199999 100000", 1), (f"{MINE}00000 100000", MINE)])
def test_whole_cores_are_available_and_at_least_one(machine: Machine, limit: str, cores: int) -> None:
    machine.mount("cgroup2")
    machine.belongs_to("0::/")
    machine.write(".", cpu__max=limit)
    assert available_cores(machine.process) == cores


def test_the_quota_of_this_process_can_be_read() -> None:
    assert cpu_quota() > 0
    assert 1 <= available_cores() <= MINE
