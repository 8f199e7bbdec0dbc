"""The services of the Compose files in containers, but for Grafana, which Debian lacks."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deploy.containers import CONSUME, PRODUCE, Compose, query, query_until
from tests.deploy.files import ROOT, alerts
from tests.deploy.podman import Podman, PodmanError, base_image

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]  # debootstrap and the build come before the first test

BROKERS = ("broker-1", "broker-2", "broker-3")
PROMETHEUS = """
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget \
    && install --directory --owner=nobody --group=nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
"""
ETCD = """
FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends etcd-server etcd-client \\
    && chown root:root /var/lib/etcd
"""


def build_from_debian(podman: Podman, directory: Path, tag: str, containerfile: str) -> None:
    """Build an image of another project's name from Debian's packages, so that no image registry is needed."""
    base, _ = base_image((ROOT / "Dockerfile").read_text())
    path = directory / "Containerfile"
    path.write_text(containerfile.format(base=base))
    podman.build(tag, "--pull=never", f"--file={path}", str(directory))


def admin_login(podman: Podman, directory: Path, broker: str = "broker") -> dict[str, str]:
    """Return how a client of librdkafka logs in, as docs/deployment.md has it."""
    for name in ("ca.pem", "admin.password"):
        podman("cp", f"{broker}:/secrets/{name}", str(directory / name))
    return {
        "security.protocol": "SASL_SSL", "ssl.ca.location": str(directory / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin",
        "sasl.password": (directory / "admin.password").read_text().strip(),
    }  # fmt: skip


@pytest.mark.usefixtures("image")
def test_services_of_the_compose_file_serve_scrape_and_stop(podman: Podman, tmp_path: Path) -> None:
    compose = Compose(podman, "compose.yaml")
    build_from_debian(podman, tmp_path, compose.services["prometheus"]["image"], PROMETHEUS)
    with compose.run("broker"):
        podman.wait_for_line("broker", "ready")
        assert compose.is_healthy("broker")
        with pytest.raises(PodmanError):  # it encrypts, and asks for a login
            podman.python(PRODUCE, "0", "1", json.dumps({"message.timeout.ms": 2000}))
        login = json.dumps(admin_login(podman, tmp_path))
        podman.python(PRODUCE, "0", "100", login)
        assert podman.python(CONSUME, "100", login).strip() == "True"
        assert "orders" in podman("exec", "broker", "warmlog", "topic", "list")
        with compose.run("prometheus"):
            compose.wait_until_healthy("prometheus")
            query_until(
                podman, "the broker is scraped", "query?query=up{job='warmlog'}",
                holds=lambda data: [each["value"][1] for each in data["result"]] == ["1"],
            )  # fmt: skip
            query_until(
                podman, "records are counted", "query?query=sum(warmlog_bytes_in_total)",
                holds=lambda data: data["result"] and float(data["result"][0]["value"][1]) > 0,
            )  # fmt: skip
            names = {rule["name"] for group in query(podman, "rules")["groups"] for rule in group["rules"]}
            assert names == {rule["alert"] for rule in alerts()}
            for name in ("prometheus", "broker"):
                compose.stop(name)


@pytest.mark.usefixtures("image")
def test_brokers_of_the_cluster_replace_one_that_is_killed(podman: Podman, tmp_path: Path) -> None:
    compose = Compose(podman, "compose-cluster.yaml")
    build_from_debian(podman, tmp_path, compose.services["etcd"]["image"], ETCD)
    with ExitStack() as running:
        for name in ("cluster", "etcd", *BROKERS):
            running.enter_context(compose.run(name))
            compose.wait_until_healthy(name)
        with pytest.raises(PodmanError):  # they encrypt, and ask for a login
            podman.python(PRODUCE, "0", "1", json.dumps({"message.timeout.ms": 2000}))
        login = json.dumps(admin_login(podman, tmp_path, "broker-1"))
        podman.python(PRODUCE, "0", "1000", login)
        # creates __consumer_offsets, which takes three brokers
        assert podman.python(CONSUME, "1000", login).strip() == "True"
        assert "3 brokers" in podman("exec", "broker-1", "warmlog", "cluster", "describe")
        podman("kill", "--signal=KILL", "broker-3")
        podman.python(PRODUCE, "1000", "2000", login)
        podman("start", "broker-3")
        compose.wait_until_healthy("broker-3")
        podman("kill", "--signal=KILL", "broker-2")
        podman.python(PRODUCE, "2000", "3000", login)
        assert podman.python(CONSUME, "3000", login).strip() == "True"
        podman("start", "broker-2")
        compose.wait_until_healthy("broker-2")
        for name in (*BROKERS, "etcd"):
            compose.stop(name)
    for volume in ("etcd", "data-1", "data-2", "data-3", "secrets"):
        podman("volume", "rm", volume)
