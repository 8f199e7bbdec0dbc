"""The brokers of a read or a write: their addresses, encryption and login.

Tasks receive it with their splits, so it holds file names instead of contents: each worker reads the files itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.options import OptionTexts, bootstrap, flag, nonempty
from warmlog.protocol.scram import MECHANISMS, PLAIN

if TYPE_CHECKING:
    from warmlog.client.settings import Mechanism, Settings

DEFAULT_MECHANISM = "SCRAM-SHA-512"
_MECHANISMS = (*MECHANISMS, PLAIN)

# Maps an option's name to the form of its value, for error messages.
BROKERS_TABLE: Mapping[str, str] = {
    "bootstrap": "a broker's native address, host:port",
    "tlsCa": "a file of certificates, or system",
    "tlsCertificate": "a file with a private key and its certificate",
    "user": "the name of a user",
    "password": "a password",
    "passwordFile": "a file with a password",
    "tokenFile": "a file with an access token",
    "delegationToken": "true, if the user and the password are a delegation token's id and HMAC, or false",
    "mechanism": ", ".join(_MECHANISMS[:-1]) + f" or {PLAIN}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """Options for connecting. `addresses`: `host:port`, separated by commas. Others: see `docs/authentication.md`."""

    addresses: str
    tls_ca: str | None = None
    tls_certificate: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    token_file: str | None = None
    mechanism: str = DEFAULT_MECHANISM
    is_delegation_token: bool = False

    def at(self, addresses: str) -> "Brokers":
        """Return a copy with other addresses."""
        return replace(self, addresses=addresses)

    def connecting(self, settings: "Settings") -> "Settings":
        """Return client settings with the encryption and login of these brokers.

        Raises PipelineError for a file that cannot be used.
        """
        from warmlog.client.files import read_password, tls_context  # imports the client

        try:
            if self.tls_ca is not None:
                settings = replace(settings, tls=tls_context(self.tls_ca, self.tls_certificate))
            if self.user is not None:
                password = self.password if self.password_file is None else read_password(Path(self.password_file))
                settings = replace(
                    settings,
                    username=self.user,
                    password=password,
                    mechanism=cast("Mechanism", self.mechanism),
                    delegation_token=self.is_delegation_token,
                )
            if self.token_file is not None:
                from warmlog.client.tokens import TokenFile

                settings = replace(settings, token=TokenFile(self.token_file))
        except ValueError as error:
            raise PipelineError(str(error)) from None
        return settings


def parse_brokers(texts: OptionTexts) -> Brokers | None:
    """Return the brokers in the options, or None without an address. Raises PipelineError."""
    addresses = texts.parsed("bootstrap", bootstrap, None)
    for name, needed in (
        ("tlsCa", "bootstrap"),
        ("tlsCertificate", "tlsCa"),
        ("user", "bootstrap"),
        ("password", "user"),
        ("passwordFile", "user"),
        ("mechanism", "user"),
        ("delegationToken", "user"),
        ("tokenFile", "bootstrap"),
    ):
        if name in texts and needed not in texts:
            raise PipelineError(f"option {name} needs {needed}")
    if "user" in texts and ("password" in texts) == ("passwordFile" in texts):
        raise PipelineError("option user needs either passwordFile or password")
    if "user" in texts and "tokenFile" in texts:
        raise PipelineError("options user and tokenFile exclude each other")
    if addresses is None:
        return None
    return Brokers(
        addresses=addresses,
        tls_ca=texts.parsed("tlsCa", nonempty, None),
        tls_certificate=texts.parsed("tlsCertificate", nonempty, None),
        user=texts.parsed("user", nonempty, None),
        password=texts.parsed("password", nonempty, None),
        password_file=texts.parsed("passwordFile", nonempty, None),
        token_file=texts.parsed("tokenFile", nonempty, None),
        mechanism=texts.parsed("mechanism", _mechanism, DEFAULT_MECHANISM),
        is_delegation_token=texts.parsed("delegationToken", flag, False),
    )


def _mechanism(text: str) -> str:
    return {name: name for name in _MECHANISMS}[text.strip().upper()]
