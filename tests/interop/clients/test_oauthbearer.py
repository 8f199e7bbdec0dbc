"""Kafka's tools log in with tokens: from an issuer, and from a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.java_tools import Call, run
from tests.issuer import CLIENT, SECRET, Issuer, running_issuer
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PACKAGE = "org.apache.kafka.common.security.oauthbearer"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def address(tmp_path: Path, issuer: Issuer) -> Iterator[str]:
    settings = {
        "listener.security.protocol.map": "kafka:SASL_PLAINTEXT",
        "group.initial.rebalance.delay.ms": 0,
        **issuer.settings(),
    }
    with Broker(data_dir=tmp_path / "data", settings=settings) as broker:
        yield broker.kafka


def client_file(path: Path, url: str, options: str = "") -> str:
    """Write the properties of a Java client that gets tokens from there."""
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.jaas.config={PACKAGE}.OAuthBearerLoginModule required {options};\n"
        f"sasl.login.callback.handler.class={PACKAGE}.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url={url}\n"
        "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
    )
    return str(path)


def test_kafkas_tools_log_in_with_tokens(java_tools: None, address: str, issuer: Issuer, tmp_path: Path) -> None:
    good = f'clientId="{CLIENT}" clientSecret="{SECRET}" scope="kafka"'
    granted = client_file(tmp_path / "granted", f"{issuer.url}/token", good)
    (tmp_path / "token").write_text(issuer.token("bob"))
    in_file = client_file(tmp_path / "in-file", (tmp_path / "token").as_uri())
    (tmp_path / "other").write_text(issuer.token("bob", aud="another"))
    refused = client_file(tmp_path / "refused", (tmp_path / "other").as_uri())
    calls: dict[str, Call] = {}
    for name, config in (("granted", granted), ("in file", in_file)):
        calls |= {
            f"produce {name}": Call(
                tool="kafka-console-producer",
                arguments=("--topic", name.replace(" ", "-"), "--command-config", config),
                text=f"by {name}\n",
            ),
            f"consume {name}": Call(
                tool="kafka-console-consumer",
                arguments=(
                    *("--topic", name.replace(" ", "-"), "--from-beginning", "--max-messages", "1", "--group", "g"),
                    *("--command-config", config),
                ),
            ),
        }
    calls["refused"] = Call(tool="kafka-topics", arguments=("--list", "--command-config", refused))
    allowed = ",".join([f"{issuer.url}/token", (tmp_path / "token").as_uri(), (tmp_path / "other").as_uri()])
    found = run(address, calls, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed}")
    for name in ("granted", "in file"):
        assert found[f"produce {name}"].status == 0, found[f"produce {name}"]
        assert f"by {name}\n" in found[f"consume {name}"].output, found[f"consume {name}"]
    assert issuer.grants
    assert found["refused"].status != 0
    assert "invalid_token" in found["refused"].output + found["refused"].complaints
