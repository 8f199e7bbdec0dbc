"""A real Prometheus logs in to a broker's HTTP, with the configuration in docs/authentication.md."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.broker.cluster.certificates import Authority
from tests.broker.net.transport.conftest import key_store
from tests.deploy.conftest import Tool
from tests.deploy.monitoring.prometheus import Prometheus, free_address, until, value_of
from warmlog.cli.root import root
from warmlog.testing import Broker

pytestmark = pytest.mark.interop

DOCUMENT = Path(__file__).parents[3] / "docs" / "authentication.md"


def test_prometheus_scrapes_with_a_password(tool: Tool, tmp_path: Path) -> None:
    path = tool("prometheus")
    authority = Authority(tmp_path / "ca")
    store = key_store(tmp_path / "broker.pem", authority.issue("broker"))
    for user in ("prometheus", "other"):
        arguments = ["user", "create", user, "--new-password-file", "-", "--data-dir", str(tmp_path / "data")]
        assert CliRunner().invoke(root, arguments, input="scrape\n").exit_code == 0
    settings = {
        "warmlog.http.security.protocol": "SSL",
        "warmlog.http.authentication": "basic",
        "ssl.keystore.location": str(store),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:prometheus",
    }
    found = re.search(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    run = tmp_path / "run"
    run.mkdir()
    (run / "prometheus.yml").write_text("global:\n  scrape_interval: 1s\n" + found[1])
    (run / "prometheus.password").write_text("scrape")
    shutil.copy(authority.ca, run / "ca.pem")
    address = free_address()
    command = [path, f"--config.file={run / 'prometheus.yml'}", f"--storage.tsdb.path={run / 'data'}",
               f"--web.listen-address={address}", "--log.level=warn"]  # fmt: skip
    with Broker(data_dir=tmp_path / "data", settings=settings) as broker:
        (run / "targets.yml").write_text(f'[{{"targets": ["{broker.http}"]}}]')
        with (run / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                server = Prometheus(address)
                until(lambda: value_of(server, "warmlog_ready") == [1.0], lambda: None, (run / "log").read_text)
                assert value_of(server, 'up{job="warmlog"}') == [1.0]
            finally:
                process.terminate()
