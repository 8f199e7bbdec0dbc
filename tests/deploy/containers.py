"""Run services of the Compose files as containers, and programs that use them."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any

from tests.deploy.compose import health_check, run_options, services_of
from tests.deploy.podman import RUN, Podman, PodmanError

IMAGE: str = services_of("compose.yaml")["broker"]["image"]
LIMIT_S = 60
PRODUCE = """
import json, sys
from confluent_kafka import Producer
failures = []
login = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
producer = Producer({"bootstrap.servers": "localhost:9092", "acks": "all", "log_level": 0, **login})
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    producer.produce("orders", b"%d" % number, on_delivery=lambda error, _: error and failures.append(error))
assert producer.flush(30) == 0
assert failures == []
"""
CONSUME = """
import json, sys, uuid
from confluent_kafka import Consumer
login = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
settings = {"bootstrap.servers": "localhost:9092", **login, "auto.offset.reset": "earliest"}
settings["enable.partition.eof"] = True
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


class Compose:
    """Runs the services of one Compose file, all in one network."""

    def __init__(self, podman: Podman, name: str) -> None:
        self.services = services_of(name)
        self._podman = podman

    def run(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager that runs a service as a container of its name."""
        service = self.services[name]
        options = run_options(service, list(self.services))
        return container(self._podman, name, *options, service["image"], *service.get("command", []))

    def is_healthy(self, name: str) -> bool:
        """Run the health check of a service in its container."""
        try:
            self._podman("exec", name, *health_check(self.services[name]))
        except PodmanError:
            return False
        return True

    def wait_until_healthy(self, name: str) -> None:
        """Return when a service is healthy; fail with its log if that takes too long."""
        deadline = monotonic() + LIMIT_S
        while not self.is_healthy(name):
            assert monotonic() < deadline, self._podman("logs", name)

    def stop(self, name: str) -> None:
        """Stop a service; fail unless it exits with status 0."""
        self._podman("stop", name)
        assert inspect(self._podman, name, "{{.State.ExitCode}}") == "0", self._podman("logs", name)


def query(podman: Podman, path: str) -> Any:
    """Ask Prometheus in the containers' network."""
    return json.loads(podman.python(GET, f"http://127.0.0.1:9090/api/v1/{path}"))["data"]


def query_until(podman: Podman, condition: str, path: str, *, holds: Callable[[Any], object]) -> None:
    """Ask Prometheus again and again until an answer is as expected."""
    deadline = monotonic() + LIMIT_S
    while not holds(answer := query(podman, path)):
        assert monotonic() < deadline, f"{condition}: {answer}"
