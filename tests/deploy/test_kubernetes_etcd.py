"""etcd of deploy/kubernetes-cluster: members and a broker with the options, settings and certificates of the manifests.

Only addresses and paths are others than in Kubernetes.
"""

import base64
import shutil
import ssl
import subprocess
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from interop.ports import free_ports
from interop.warmlog_nodes import WarmlogNode
from tests.deploy.files import DEPLOY
from tests.deploy.kubernetes import Object, expanded
from tests.requires import lacks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]
DIRECTORY = DEPLOY / "kubernetes-cluster"
MEMBERS = 3
LIMIT_S = 60.0
CLIENT, PEER, METRICS = 2379, 2380, 2381


def issue(folder: Path) -> dict[str, Object]:
    """Run the script that makes certificates, and return the Secrets by name."""
    if shutil.which("openssl") is None:
        lacks("openssl is not installed: apt-get install openssl")
    done = subprocess.run([DIRECTORY / "certificates.sh", folder], capture_output=True, text=True, check=True)
    return {found["metadata"]["name"]: found for found in yaml.safe_load_all(done.stdout)}


def mount(secret: Object, directory: Path) -> Path:
    """Write a Secret's files, as Kubernetes does."""
    directory.mkdir()
    for name, data in secret["data"].items():
        (directory / name).write_bytes(base64.b64decode(data))
    return directory


@pytest.fixture(scope="module")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the two Secrets, by the paths at which the manifests mount them."""
    root = tmp_path_factory.mktemp("kubernetes")
    secrets = issue(root / "ca")
    return {
        "/etc/etcd": mount(secrets["etcd-server"], root / "server"),
        "/etc/warmlog-etcd": mount(secrets["etcd-client"], root / "client"),
    }


class Members:
    """The members of etcd, and the ports that they have here."""

    def __init__(self, mounts: dict[str, Path], directory: Path) -> None:
        (stateful_set,) = [
            found
            for found in yaml.safe_load_all((DIRECTORY / "etcd.yaml").read_text())
            if found["kind"] == "StatefulSet"
        ]
        (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
        self._command: list[str] = container["command"]
        self._mounts, self._directory = mounts, directory
        ports = free_ports(3 * MEMBERS)
        self._ports = [ports[3 * number : 3 * number + 3] for number in range(MEMBERS)]

    def here(self, text: str, own: int = 0) -> str:
        """Replace addresses and paths of Kubernetes by those of this machine; `own`: the number of a member."""
        for number, ports in enumerate(self._ports):
            for port, free in zip((CLIENT, PEER, METRICS), ports, strict=True):
                text = text.replace(f"etcd-{number}.etcd:{port}", f"127.0.0.1:{free}")
                if number == own:
                    text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{free}")
        for path, folder in self._mounts.items():
            text = text.replace(path, str(folder))
        return text.replace("/var/lib/etcd", str(self._directory / f"member-{own}"))

    @contextmanager
    def running(self, number: int) -> Iterator[None]:
        """Run a member."""
        if shutil.which("etcd") is None:
            lacks("etcd is not installed: apt-get install etcd-server")
        command = [self.here(expanded(word, POD_NAME=f"etcd-{number}"), number) for word in self._command]
        with (
            (self._directory / f"member-{number}.log").open("w") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as process,
        ):
            try:
                yield
            finally:
                process.kill()

    def wait_until_healthy(self) -> None:
        """Ask as the probes do, without a certificate."""
        limit = time.monotonic() + LIMIT_S
        for _, _, metrics in self._ports:
            while not _is_healthy(f"http://127.0.0.1:{metrics}/health"):
                assert time.monotonic() < limit, (self._directory / "member-0.log").read_text()[-2000:]


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return b'"true"' in response.read()
    except OSError:
        return False


@pytest.fixture
def members(mounts: dict[str, Path], tmp_path: Path) -> Iterator[Members]:
    members = Members(mounts, tmp_path)
    with ExitStack() as stack:
        for number in range(MEMBERS):
            stack.enter_context(members.running(number))
        members.wait_until_healthy()
        yield members


def test_a_broker_registers_and_nobody_else_is_let_in(members: Members, tmp_path: Path) -> None:
    settings = tomllib.loads(members.here((DIRECTORY / "warmlog.toml").read_text()))
    cluster = {name: value for name, value in settings.items() if name.startswith("warmlog.cluster")}
    node = WarmlogNode(1, tmp_path, cluster)
    try:
        node.start()
        assert "broker 1 is registered" in node.logged
        assert node.stop() == 0
    finally:
        node.kill()
    for endpoint in cluster["warmlog.cluster.etcd"].split(","):
        stranger = ssl.create_default_context(cafile=cluster["warmlog.cluster.etcd.ca.file"])
        with pytest.raises(OSError, match="certificate"):
            urllib.request.urlopen(f"{endpoint}/version", context=stranger, timeout=10)
        with pytest.raises(OSError, match=r"400|closed"):  # "client sent an HTTP request to an HTTPS server"
            urllib.request.urlopen(f"{endpoint}/version".replace("https", "http"), timeout=10)


def test_certificates_name_every_member_and_are_renewed_by_the_same_authority(tmp_path: Path) -> None:
    first, second = issue(tmp_path / "ca"), issue(tmp_path / "ca")
    assert first["etcd-server"]["data"]["ca.pem"] == second["etcd-client"]["data"]["ca.pem"]
    assert first["etcd-server"]["data"]["tls.pem"] != second["etcd-server"]["data"]["tls.pem"]
    assert (tmp_path / "ca" / "ca.key").stat().st_mode & 0o077 == 0
    server = mount(second["etcd-server"], tmp_path / "server")
    for number in range(MEMBERS):
        for name in (f"etcd-{number}.etcd", f"etcd-{number}.etcd.warmlog.svc.cluster.local", "localhost"):
            command = ["openssl", "verify", "-CAfile", server / "ca.pem", "-verify_hostname", name, server / "tls.pem"]
            subprocess.run(command, check=True, capture_output=True)
