"""The image of the Dockerfile, built and run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.containers import CONSUME, IMAGE, PRODUCE, container, inspect
from tests.deploy.files import ROOT
from tests.deploy.podman import RUN, Podman, PodmanError, base_image

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]  # debootstrap and the build come before the first test

DOCKERFILE = (ROOT / "Dockerfile").read_text()
UID = 1000
MAX_ADDED_BYTES = 100_000_000  # by the image to its base


@pytest.fixture
def broker(podman: Podman, image: str) -> Iterator[str]:
    """A container that serves on the image's own ports, with its data in a volume."""
    with container(podman, "broker", "--volume=records:/data", image):
        podman.wait_for_line("broker", "ready")
        yield "broker"
    podman("volume", "rm", "records")


def user_of(podman: Podman, name: str) -> int:
    """Return the user id of a container's first process, as the kernel has it."""
    status = Path(f"/proc/{inspect(podman, name, '{{.State.Pid}}')}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1])


def test_records_of_a_container_outlive_its_kill(podman: Podman, broker: str) -> None:
    podman.python(PRODUCE, "0", "1000")
    assert podman.python(CONSUME, "1000").strip() == "True"
    podman("kill", "--signal=KILL", broker)
    assert podman("wait", broker).strip() == "137"
    podman("start", broker)
    podman.wait_for_line(broker, "ready", times=2)
    podman.python(PRODUCE, "1000", "2000")
    assert podman.python(CONSUME, "2000").strip() == "True"


def test_it_runs_as_a_user_without_rights_and_owns_its_volume(podman: Podman, broker: str) -> None:
    assert user_of(podman, broker) == UID
    assert podman("exec", broker, "stat", "--format=%u %g", "/data", "/data/meta.properties").split() == ["1000"] * 4
    with pytest.raises(PodmanError, match="Permission denied"):
        podman("exec", broker, "touch", "/opt/warmlog/bin/python3")


def test_it_is_compiled(podman: Podman, broker: str) -> None:
    imports = "from warmlog.protocol.records import codec; from warmlog.broker.log.appends import appender"
    code = f"{imports}; print(codec.compiled, appender.__file__)"
    compiled, path = podman("exec", broker, "python", "-c", code).split()
    assert compiled == "True"
    assert path.endswith(".so")


def test_it_is_healthy_while_it_serves_and_not_when_it_does_not_answer(podman: Podman, broker: str) -> None:
    assert podman.is_healthy(broker)
    podman("kill", "--signal=STOP", broker)
    assert not podman.is_healthy(broker)
    podman("kill", "--signal=CONT", broker)
    assert podman.is_healthy(broker)


def test_it_stops_in_order(podman: Podman, broker: str) -> None:
    podman.python(PRODUCE, "0", "10")
    podman("stop", broker)
    assert inspect(podman, broker, "{{.State.ExitCode}}") == "0"
    assert podman("run", *RUN, "--rm", "--volume=records:/data", "--entrypoint=ls", IMAGE, "-A", "/data").count(
        ".kafka_cleanshutdown"
    )


def test_it_is_small_and_holds_neither_compiler_nor_pip(podman: Podman, image: str) -> None:
    name, _ = base_image(DOCKERFILE)
    base, whole = (int(inspect(podman, each, "{{.Size}}")) for each in (name, image))
    assert whole - base < MAX_ADDED_BYTES
    tools = "for tool in cc gcc pip; do command -v $tool; done; true"
    assert podman("run", *RUN, "--rm", "--entrypoint=sh", image, "-c", tools) == ""


def test_a_bad_setting_ends_it_with_one_line(podman: Podman, image: str) -> None:
    with pytest.raises(PodmanError, match="status 2") as raised:
        podman("run", *RUN, "--rm", "--env=WARMLOG_NUM_PARTITIONS=zero", image)
    assert "num.partitions" in str(raised.value)
