from pathlib import Path

import pytest

from tests.broker.cluster.certificates import Authority, Issued


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca") / "ca")


def key_store(path: Path, issued: Issued) -> Path:
    """Write a key and its certificate to one file."""
    path.write_text(issued.key.read_text() + issued.certificate.read_text())
    return path


@pytest.fixture
def store(authority: Authority, tmp_path: Path) -> Path:
    """The key and certificate of a broker at 127.0.0.1."""
    return key_store(tmp_path / "broker.pem", authority.issue("broker"))
