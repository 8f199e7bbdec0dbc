"""The settings of TLS, as they apply to one listener."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from warmlog.broker.settings.listeners import value_for
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import SettingError, parts

ClientAuth = Literal["none", "requested", "required"]

PEM: Final = "PEM"
TLS_1_2: Final = "TLSv1.2"
TLS_1_3: Final = "TLSv1.3"
# All that OpenSSL enables for TLS 1.3. Python cannot choose among them.
TLS_1_3_SUITES: Final = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})

CONVERT: Final[Mapping[str, str]] = {
    "JKS": "; convert it: keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12, then "
    "openssl pkcs12 -in FILE.p12 -out FILE.pem",
    "PKCS12": "; convert it: openssl pkcs12 -in FILE -out FILE.pem",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How a listener identifies itself and checks clients. `names` are the settings that the values come from."""

    names: Mapping[str, str]
    keystore_location: str
    certificate_chain: str
    key: str
    key_password: str
    truststore_location: str
    truststore_certificates: str
    client_auth: ClientAuth
    principal_mapping_rules: str
    protocols: tuple[str, ...]
    ciphers: str  # in OpenSSL's form; empty: OpenSSL's own choice


def tls_settings(settings: Settings, listener: str) -> TlsSettings:
    """Return the settings of TLS for a listener. Raises SettingError."""
    names: dict[str, str] = {}

    def get(name: str) -> str:
        names[name], value = value_for(settings, listener, name)
        return value.strip()

    for name in ("ssl.keystore.type", "ssl.truststore.type"):
        if (kind := get(name)) != PEM:
            raise SettingError(f"{names[name]}: only PEM is supported, not {kind}{CONVERT.get(kind, '')}")
    location, chain, key = get("ssl.keystore.location"), get("ssl.keystore.certificate.chain"), get("ssl.keystore.key")
    if location and (chain or key):
        raise SettingError(
            f"{names['ssl.keystore.location']}: conflicts with ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    if not location and not (chain and key):
        raise SettingError(
            f"{listener} listener: SSL needs ssl.keystore.location, or both ssl.keystore.certificate.chain and "
            "ssl.keystore.key"
        )
    trusted, certificates = get("ssl.truststore.location"), get("ssl.truststore.certificates")
    if trusted and certificates:
        raise SettingError(f"{names['ssl.truststore.location']}: conflicts with ssl.truststore.certificates")
    client_auth = get("ssl.client.auth")
    if client_auth not in {"none", "requested", "required"}:
        raise SettingError(f"{names['ssl.client.auth']}: expected none, requested or required, not {client_auth!r}")
    if client_auth != "none" and not trusted and not certificates:
        raise SettingError(
            f"{names['ssl.client.auth']}: {client_auth} needs the CA of the clients: ssl.truststore.location or "
            "ssl.truststore.certificates"
        )
    protocols = tuple(parts(get("ssl.enabled.protocols")))
    if not protocols or set(protocols) - {TLS_1_2, TLS_1_3}:
        raise SettingError(
            f"{names['ssl.enabled.protocols']}: expected {TLS_1_2}, {TLS_1_3} or both, not {','.join(protocols)!r}"
        )
    ciphers = _ciphers(get("ssl.cipher.suites"), names["ssl.cipher.suites"])
    return TlsSettings(
        names=names,
        keystore_location=location,
        certificate_chain=chain,
        key=key,
        key_password=get("ssl.key.password"),
        truststore_location=trusted,
        truststore_certificates=certificates,
        client_auth=cast("ClientAuth", client_auth),
        principal_mapping_rules=get("ssl.principal.mapping.rules"),
        protocols=protocols,
        ciphers=ciphers,
    )


def _ciphers(text: str, setting: str) -> str:
    """Return cipher suites of TLS 1.2 in OpenSSL's form, given by its names or Java's. Raises SettingError."""
    names = parts(text.replace(":", ","))
    newer = TLS_1_3_SUITES & set(names)
    if newer and newer != TLS_1_3_SUITES:
        raise SettingError(
            f"{setting}: suites of TLS 1.3 cannot be chosen: give all of {', '.join(sorted(TLS_1_3_SUITES))} or none"
        )
    return ":".join(_openssl_name(name) for name in names if name not in newer)


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    if not name.startswith("TLS_") or "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    for long, short in (("AES_128", "AES128"), ("AES_256", "AES256"), ("POLY1305_SHA256", "POLY1305"), ("_CBC_", "_")):
        cipher = cipher.replace(long, short)
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")
