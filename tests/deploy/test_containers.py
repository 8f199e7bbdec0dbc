"""The image of the Dockerfile, built and run; and the services of compose.yaml, but for Grafana, which Debian lacks."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.deploy.compose import health_check, run_options
from tests.deploy.files import DEPLOY, ROOT, alerts, load
from tests.deploy.podman import RUN, Podman, PodmanError, base_image, make_base, podman_at
from tests.requires import lacks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]  # debootstrap and the build come before the first test

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = load(DEPLOY / "compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
IMAGE = SERVICES["broker"]["image"]
UID = 1000
MAX_ADDED_BYTES = 80_000_000  # by the image to its base
LIMIT_S = 60
PROMETHEUS = """
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget \
    && install --directory --owner=nobody --group=nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
"""
PRODUCE = """
import sys
from confluent_kafka import Producer
failures = []
producer = Producer({"bootstrap.servers": "127.0.0.1:9092", "acks": "all"})
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    producer.produce("orders", b"%d" % number, on_delivery=lambda error, _: error and failures.append(error))
assert producer.flush(30) == 0
assert failures == []
"""
CONSUME = """
import sys, uuid
from confluent_kafka import Consumer
settings = {"bootstrap.servers": "127.0.0.1:9092", "auto.offset.reset": "earliest", "enable.partition.eof": True}
consumer = Consumer({**settings, "group.id": str(uuid.uuid4())})
consumer.subscribe(["orders"])
values = []
while len(values) < int(sys.argv[1]):
    message = consumer.poll(30)
    assert message is not None
    if not message.error():
        values.append(int(message.value()))
consumer.close()
print(sorted(values) == list(range(int(sys.argv[1]))))
"""
GET = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(opener.open(sys.argv[1], timeout=30).read().decode())
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """An engine that holds the base image and has been seen to run it."""
    directory = tmp_path_factory.mktemp("podman")
    name, suite = base_image(DOCKERFILE)
    with podman_at(directory, f"warmlog-{os.getpid()}") as engine:
        make_base(engine, directory, name, suite)
        try:
            engine("run", *RUN, "--rm", name, "true")
        except (PodmanError, subprocess.TimeoutExpired) as error:
            lacks(f"podman cannot run a container on this machine (mounts, namespaces, cgroups?): {error}")
        yield engine


@pytest.fixture(scope="module")
def image(podman: Podman) -> str:
    """The name of the image that users build, built as they build it."""
    podman.build(IMAGE, "--pull=never", ".")
    return IMAGE


@pytest.fixture
def broker(podman: Podman, image: str) -> Iterator[str]:
    """A container that serves on the image's own ports, with its data in a volume."""
    with container(podman, "broker", "--volume=records:/data", image):
        podman.wait_for_line("broker", "ready")
        yield "broker"
    podman("volume", "rm", "records")


@contextmanager
def container(podman: Podman, name: str, *arguments: str) -> Iterator[None]:
    """Run a container; killed and removed at the end."""
    podman("run", *RUN, "--detach", f"--name={name}", *arguments)
    try:
        yield
    finally:
        podman("rm", "--force", "--time=0", name)


def inspect(podman: Podman, name: str, form: str) -> str:
    return podman("inspect", "--format", form, name).strip()


def user_of(podman: Podman, name: str) -> int:
    """Return the user id of a container's first process, as the kernel has it."""
    status = Path(f"/proc/{inspect(podman, name, '{{.State.Pid}}')}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1])


def query(podman: Podman, path: str) -> Any:
    return json.loads(podman.python(GET, f"http://127.0.0.1:9090/api/v1/{path}"))["data"]


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
    code = "from protocol.records import codec; from broker.log import append; print(codec.compiled, append.__file__)"
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


def test_services_of_the_compose_file_serve_scrape_and_stop(podman: Podman, image: str, tmp_path: Path) -> None:
    containerfile = tmp_path / "Containerfile"
    containerfile.write_text(PROMETHEUS.format(base=base_image(DOCKERFILE)[0]))
    podman.build(SERVICES["prometheus"]["image"], "--pull=never", f"--file={containerfile}", str(tmp_path))
    hosts = list(SERVICES)

    def service(name: str) -> list[str]:
        described = SERVICES[name]
        return [*run_options(described, hosts), described["image"], *described.get("command", [])]

    def is_healthy(name: str) -> bool:
        try:
            podman("exec", name, *health_check(SERVICES[name]))
        except PodmanError:
            return False
        return True

    def until(condition: str, path: str, *, holds: Any) -> None:
        deadline = monotonic() + LIMIT_S
        while not holds(answer := query(podman, path)):
            assert monotonic() < deadline, f"{condition}: {answer}"

    with container(podman, "broker", *service("broker")):
        podman.wait_for_line("broker", "ready")
        assert is_healthy("broker")
        podman.python(PRODUCE, "0", "100")
        with container(podman, "prometheus", *service("prometheus")):
            deadline = monotonic() + LIMIT_S
            while not is_healthy("prometheus"):
                assert monotonic() < deadline, podman("logs", "prometheus")
            until(
                "the broker is scraped", "query?query=up{job='warmlog'}",
                holds=lambda data: [each["value"][1] for each in data["result"]] == ["1"],
            )  # fmt: skip
            until(
                "records are counted", "query?query=sum(warmlog_bytes_in_total)",
                holds=lambda data: data["result"] and float(data["result"][0]["value"][1]) > 0,
            )  # fmt: skip
            names = {rule["name"] for group in query(podman, "rules")["groups"] for rule in group["rules"]}
            assert names == {rule["alert"] for rule in alerts()}
            for name in ("prometheus", "broker"):
                podman("stop", name)
                assert inspect(podman, name, "{{.State.ExitCode}}") == "0", podman("logs", name)
