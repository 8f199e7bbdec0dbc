"""The settings of HTTP. Those of TLS and of tokens are a listener's, whose name is `http`."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from warmlog.broker.settings.listeners import value_for
from warmlog.broker.settings.oauth import OAuthSettings, oauth_settings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import SettingError, parts

HTTP: Final = "http"
BASIC: Final = "basic"
BEARER: Final = "bearer"
CERTIFICATE: Final = "certificate"
WAYS: Final = (BASIC, BEARER, CERTIFICATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How clients of HTTP authenticate: not at all, if `ways` is empty."""

    is_encrypted: bool
    ways: tuple[str, ...]
    oauth: OAuthSettings | None  # with BEARER


def http_settings(settings: Settings) -> HttpSettings:
    """Return the settings of HTTP. Raises SettingError."""
    name = "warmlog.http.authentication"
    ways = tuple(dict.fromkeys([each.lower() for each in parts(settings.warmlog_http_authentication)]))
    if unknown := [each for each in ways if each not in WAYS]:
        raise SettingError(f"{name}: expected some of {', '.join(WAYS)}, not {unknown[0]}")
    is_encrypted = settings.warmlog_http_security_protocol == "SSL"
    for each in (BASIC, BEARER):
        if each in ways and not is_encrypted and not settings.warmlog_http_authentication_without_tls:
            raise SettingError(
                f"{name}: {each} would send secrets in clear: set warmlog.http.security.protocol=SSL, or "
                "warmlog.http.authentication.without.tls=true"
            )
    if CERTIFICATE in ways and not is_encrypted:
        raise SettingError(f"{name}: {CERTIFICATE} needs warmlog.http.security.protocol=SSL")
    client_auth, value = value_for(settings, HTTP, "ssl.client.auth")
    if CERTIFICATE in ways and value == "none":
        raise SettingError(f"{name}: {CERTIFICATE} needs {client_auth}=requested, or required")
    oauth = oauth_settings(HTTP, partial(value_for, settings, HTTP)) if BEARER in ways else None
    return HttpSettings(is_encrypted=is_encrypted, ways=ways, oauth=oauth)
