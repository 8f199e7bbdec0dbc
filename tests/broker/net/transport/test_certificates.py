"""Certificates and keys of a listener: files that cannot be used are refused with a reason, good ones reloaded."""

import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.cluster.certificates import Authority, Issued, openssl
from tests.broker.net.transport.conftest import key_store
from warmlog.broker.net.transport.certificates import ServerTls, TlsError
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.tls import TlsSettings, tls_settings
from warmlog.broker.settings.types import SettingError

LOCATION = "ssl.keystore.location"


def settings_of(*assignments: str) -> TlsSettings:
    return tls_settings(load_settings(assignments=assignments), "kafka")


def test_a_file_with_key_and_certificate_is_loaded(store: Path) -> None:
    tls = ServerTls("kafka", settings_of(f"{LOCATION}={store}"))
    assert tls.expires_at > 0
    assert tls.context.verify_mode is ssl.CERT_NONE
    assert tls.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_text_on_one_line_is_loaded_as_in_kafka(authority: Authority) -> None:
    issued = authority.issue("inline")
    chain, key = (path.read_text().replace("\n", " ") for path in (issued.certificate, issued.key))
    ServerTls("kafka", settings_of(f"ssl.keystore.certificate.chain={chain}", f"ssl.keystore.key={key}"))


def test_an_encrypted_key_is_loaded_with_its_password(authority: Authority, tmp_path: Path) -> None:
    issued, encrypted = authority.issue("secret"), tmp_path / "encrypted.key"
    openssl("pkcs8", "-topk8", "-in", issued.key, "-out", encrypted, "-passout", "pass:sesame")
    store = key_store(tmp_path / "store.pem", Issued(issued.certificate, encrypted))
    ServerTls("kafka", settings_of(f"{LOCATION}={store}", "ssl.key.password=sesame"))
    with pytest.raises(TlsError, match=r"the key is encrypted: set ssl\.key\.password"):
        ServerTls("kafka", settings_of(f"{LOCATION}={store}"))
    with pytest.raises(TlsError, match=r"ssl\.key\.password: does not decrypt the key"):
        ServerTls("kafka", settings_of(f"{LOCATION}={store}", "ssl.key.password=wrong"))


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:-200])


def _without(kind: str) -> Callable[[Path], None]:
    def remove(path: Path) -> None:
        head, found, rest = path.read_text().partition(f"-----BEGIN {kind}-----")
        assert found
        path.write_text(head + rest.partition(f"-----END {kind}-----")[2])

    return remove


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "No such file or directory"),
        (lambda path: path.write_text("hello"), "is not in PEM format$"),
        (
            lambda path: path.write_bytes(b"\xfe\xed\xfe\xed" + bytes(99)),
            "not in PEM format but JKS; convert it: keytool",
        ),
        (lambda path: path.write_bytes(b"\x30\x82" + bytes(99)), "not in PEM format but PKCS12; convert it: openssl"),
        (_without("PRIVATE KEY"), "has no private key"),
        (_without("CERTIFICATE"), "has no certificate"),
        (_cut, "has no certificate"),
        (lambda path: path.write_text(path.read_text().replace("MII", "AAA")), "a certificate that cannot be read"),
    ],
)
def test_an_unusable_file_is_refused(store: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(store)
    with pytest.raises(TlsError, match=rf"ssl\.keystore\.location: {store}: .*{message}"):
        ServerTls("kafka", settings_of(f"{LOCATION}={store}"))


def test_a_file_without_permission_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(TlsError, match="Permission denied"):
        ServerTls("kafka", settings_of(f"{LOCATION}={store}"))


def test_a_certificate_that_cannot_serve_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = authority.issue("other")
    expired = key_store(tmp_path / "expired.pem", authority.issue("expired", expired=True))
    wrong = key_store(tmp_path / "wrong.pem", Issued(other.certificate, authority.issue("another").key))
    with pytest.raises(TlsError, match=f"{expired}: the certificate has expired"):
        ServerTls("kafka", settings_of(f"{LOCATION}={expired}"))
    with pytest.raises(TlsError, match="the key does not belong to the first certificate"):
        ServerTls("kafka", settings_of(f"{LOCATION}={wrong}"))


def test_suites_that_do_not_go_with_the_certificate_are_refused(store: Path) -> None:
    rsa_only = ("ssl.cipher.suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ssl.enabled.protocols=TLSv1.2")
    with pytest.raises(TlsError, match=r"ssl\.cipher\.suites: none of them works with this certificate"):
        ServerTls("kafka", settings_of(f"{LOCATION}={store}", *rsa_only))
    with pytest.raises(TlsError, match=r"ssl\.cipher\.suites: OpenSSL does not know this suite"):
        ServerTls("kafka", settings_of(f"{LOCATION}={store}", "ssl.cipher.suites=TLS_MAGIC"))


@pytest.mark.parametrize("name", ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"])
def test_suites_are_known_by_names_of_java_and_of_openssl(store: Path, name: str) -> None:
    tls = ServerTls("kafka", settings_of(f"{LOCATION}={store}", f"ssl.cipher.suites={name}"))
    older = [each["name"] for each in tls.context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert older == ["ECDHE-ECDSA-AES256-GCM-SHA384"]


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ([], r"kafka listener: SSL needs ssl\.keystore\.location"),
        ([f"{LOCATION}=a", "ssl.keystore.key=b"], r"conflicts with ssl\.keystore\.certificate\.chain"),
        ([f"{LOCATION}=a", "ssl.keystore.type=JKS"], r"ssl\.keystore\.type: only PEM is supported, not JKS; convert"),
        ([f"{LOCATION}=a", "ssl.client.auth=required"], r"ssl\.client\.auth: required needs the CA of the clients"),
        ([f"{LOCATION}=a", "ssl.enabled.protocols=TLSv1.1"], r"ssl\.enabled\.protocols: expected TLSv1\.2, TLSv1\.3"),
        ([f"{LOCATION}=a", "ssl.cipher.suites=TLS_AES_128_GCM_SHA256"], r"suites of TLS 1\.3 cannot be chosen"),
        (
            [f"{LOCATION}=a", "listener.name.kafka.ssl.client.auth=maybe"],
            r"listener\.name\.kafka\.ssl\.client\.auth: expected none",
        ),
    ],
)
def test_settings_that_conflict_are_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        settings_of(*assignments)


def test_settings_of_one_listener_replace_those_of_all(store: Path) -> None:
    found = settings_of(f"{LOCATION}=/elsewhere", f"listener.name.kafka.{LOCATION}={store}")
    assert found.keystore_location == str(store)
    assert found.names[LOCATION] == f"listener.name.kafka.{LOCATION}"


def test_a_replaced_file_is_used_and_an_unusable_one_is_not(
    authority: Authority, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tls = ServerTls("kafka", settings_of(f"{LOCATION}={store}"))
    first = tls.context
    tls.refresh()
    assert tls.context is first
    store.write_text("nonsense")
    tls.refresh()
    assert tls.context is first
    assert f"still using the previous certificate: ssl.keystore.location: {store}: is not in PEM format" in caplog.text
    shutil.move(key_store(store.with_name("new.pem"), authority.issue("renewed")), store)
    tls.refresh()
    assert tls.context is not first
    assert "using the new certificate, which expires on" in caplog.text
