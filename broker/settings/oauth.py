"""The settings of OAUTHBEARER, as they apply to one listener."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from warmlog.broker.settings.types import Delay, PositiveMillis, SettingError, check_value, parts

_PREFIX: Final = "sasl.oauthbearer."
_JWKS: Final = f"{_PREFIX}jwks.endpoint."


@dataclass(frozen=True, slots=True, kw_only=True)
class JwksSettings:
    """The address of an issuer's public keys, and how often they are read."""

    url: str
    ca_file: str
    refresh_ms: int
    retry_ms: int
    retry_max_ms: int

    @property
    def path(self) -> str | None:
        """The file, None if the keys are fetched over HTTP."""
        parsed = urlsplit(self.url)
        return unquote(parsed.path) if parsed.scheme == "file" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """The requirements for tokens on a listener."""

    jwks: JwksSettings
    issuer: str
    audiences: tuple[str, ...]
    skew_s: int
    name_claim: str
    scope_claim: str


def oauth_settings(listener: str, value_for: Callable[[str], tuple[str, str]]) -> OAuthSettings:
    """Return the settings for the tokens of a listener. Raises SettingError.

    `value_for` returns the name of the setting that applies to the listener, and its value.
    """

    def get(name: str, value_type: Any = str) -> Any:
        key, text = value_for(name)
        return check_value(key, text, value_type, origin=f"{listener} listener")

    def need(name: str, why: str) -> str:
        text: str = get(name).strip()
        if not text:
            raise SettingError(f"{value_for(name)[0]}: needed for OAUTHBEARER: {why}")
        return text

    url = need(f"{_JWKS}url", "where the issuer's public keys are, such as https://issuer/jwks or file:/keys.json")
    audiences = tuple(parts(need(f"{_PREFIX}expected.audience", "the aud claim of tokens for this broker")))
    retry_ms = get(f"{_JWKS}retry.backoff.ms", PositiveMillis)
    retry_max_ms = get(f"{_JWKS}retry.backoff.max.ms", PositiveMillis)
    if retry_ms > retry_max_ms:
        raise SettingError(f"{_JWKS}retry.backoff.ms: expected at most {_JWKS}retry.backoff.max.ms ({retry_max_ms})")
    jwks = JwksSettings(
        url=url,
        ca_file=get("warmlog.sasl.oauthbearer.ca.file").strip(),
        refresh_ms=get(f"{_JWKS}refresh.ms", PositiveMillis),
        retry_ms=retry_ms,
        retry_max_ms=retry_max_ms,
    )
    _check_url(jwks, value_for(f"{_JWKS}url")[0])
    return OAuthSettings(
        jwks=jwks,
        issuer=need(f"{_PREFIX}expected.issuer", "the iss claim of tokens"),
        audiences=audiences,
        skew_s=get(f"{_PREFIX}clock.skew.seconds", Delay),
        name_claim=need(f"{_PREFIX}sub.claim.name", "the claim with the name of the principal"),
        scope_claim=need(f"{_PREFIX}scope.claim.name", "the claim with the scopes"),
    )


def _check_url(jwks: JwksSettings, name: str) -> None:
    if "@" in jwks.url:  # shown without the user part, which may contain a password
        raise SettingError(f"{name}: an address of keys cannot contain a user")
    try:
        parsed = urlsplit(jwks.url)
        is_valid = (
            parsed.path.startswith("/") if parsed.scheme == "file" else bool(parsed.hostname and parsed.port != 0)
        )
    except ValueError:
        is_valid = False
    if not is_valid or parsed.scheme not in {"file", "http", "https"}:
        raise SettingError(f"{name}: expected https://HOST/PATH, http://HOST/PATH or file:/PATH, not {jwks.url!r}")
    if jwks.ca_file and parsed.scheme != "https":
        raise SettingError(f"warmlog.sasl.oauthbearer.ca.file: needs an https: address in {name}")
