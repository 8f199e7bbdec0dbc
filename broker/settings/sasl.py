"""The settings of SASL, as they apply to one listener."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from warmlog.broker.settings.listeners import inter_broker_listener, listener_names, security_of, value_for
from warmlog.broker.settings.oauth import OAuthSettings, oauth_settings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import SettingError, parts

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", PLAIN, OAUTHBEARER)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """How clients of a listener authenticate."""

    mechanisms: tuple[str, ...]
    is_encrypted: bool
    max_frame_bytes: int
    timeout_ms: int
    failure_delay_ms: int
    session_ms: int
    oauth: OAuthSettings | None  # with OAUTHBEARER


def sasl_settings(settings: Settings, listener: str) -> SaslSettings | None:
    """Return the settings of SASL for a listener, None for one without SASL. Raises SettingError."""
    security = security_of(settings, listener)
    if not security.startswith("SASL_"):
        return None
    is_encrypted = security == "SASL_SSL"
    name, text = value_for(settings, listener, "sasl.enabled.mechanisms")
    mechanisms = tuple(dict.fromkeys(parts(text)))
    unknown = [each for each in mechanisms if each not in MECHANISMS]
    if unknown or not mechanisms:
        raise SettingError(f"{name}: expected some of {', '.join(MECHANISMS)}, not {unknown[0] if unknown else 'none'}")
    for mechanism, secrets in ((PLAIN, "passwords"), (OAUTHBEARER, "tokens")):
        if mechanism in mechanisms and not is_encrypted and not settings.warmlog_sasl_plain_without_tls:
            raise SettingError(
                f"{name}: {mechanism} would send {secrets} in clear over the {listener} listener, which is "
                "SASL_PLAINTEXT: use SASL_SSL or SCRAM, or set warmlog.sasl.plain.without.tls=true"
            )
    return SaslSettings(
        mechanisms=mechanisms,
        is_encrypted=is_encrypted,
        max_frame_bytes=settings.sasl_server_max_receive_size,
        timeout_ms=settings.warmlog_sasl_timeout_ms,
        failure_delay_ms=settings.connection_failed_authentication_delay_ms,
        session_ms=settings.connections_max_reauth_ms,
        oauth=oauth_settings(listener, partial(value_for, settings, listener)) if OAUTHBEARER in mechanisms else None,
    )


def check_sasl(settings: Settings) -> None:
    """Raise SettingError for settings of SASL that are invalid or require missing ones."""
    by_listener = {name: sasl_settings(settings, name) for name in listener_names(settings)}
    user, file = settings.warmlog_inter_broker_user, settings.warmlog_inter_broker_password_file
    if bool(user) != bool(file):
        raise SettingError("warmlog.inter.broker.user: belongs together with warmlog.inter.broker.password.file")
    if not settings.warmlog_cluster_etcd:
        return
    name = inter_broker_listener(settings)
    of_brokers = by_listener.get(name)
    if of_brokers is None:
        return
    if not user:
        raise SettingError(
            f"warmlog.inter.broker.user: needed, with warmlog.inter.broker.password.file, as the {name} listener, over "
            "which brokers reach each other, has SASL"
        )
    mechanism = settings.sasl_mechanism_inter_broker_protocol
    if mechanism not in of_brokers.mechanisms:
        raise SettingError(
            f"sasl.mechanism.inter.broker.protocol: {mechanism} is not enabled for the {name} listener, which has "
            f"{', '.join(of_brokers.mechanisms)}"
        )
