"""The login of one connection, without I/O: the requests that it may send, and its principal.

    CHOOSING ---- mechanism ----> EXCHANGING ---- last token accepted ----> COMPLETE
        ^                             |                                        |
        |                             +---- any error --------> FAILED        |
        +------------------- a mechanism again (KIP-368) ----------------------+

Invariants:
1. Until COMPLETE, a connection may only send requests that `allows` permits. FAILED is final: its answer is sent, then
   it closes.
2. A connection that authenticates again keeps its principal and mechanism, or fails. It may do so only if its login
   expires, and not within a second of the previous time; otherwise it is refused, and stays COMPLETE until it expires.
3. `deadline` applies until the first COMPLETE, `expires_at` afterwards, both in seconds of the caller's clock.

Source: org.apache.kafka.common.security.authenticator.SaslServerAuthenticator, KIP-43, KIP-152, KIP-368.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from secrets import token_urlsafe
from time import time
from typing import TYPE_CHECKING, Final

from warmlog.broker.security.oauthbearer import OAuthServer
from warmlog.broker.security.principal import Principal
from warmlog.broker.security.scram import Lookup, PlainServer, ScramServer, TokenLookup, UnknownUsers
from warmlog.protocol.oauthbearer import OAUTHBEARER
from warmlog.protocol.scram import MECHANISMS, PLAIN, SaslError

if TYPE_CHECKING:
    from warmlog.broker.security.tokens import TokenChecker  # imports joserfc, which most brokers do not need

NO_MECHANISM: Final = "none"
NONCE_BYTES: Final = 24
MIN_SESSION_S: Final = 0.001
MAX_SESSION_S: Final = 100 * 365 * 24 * 3600.0
REAUTHENTICATION_PAUSE_S: Final = 1.0  # minimum time between two starts of re-authentication, as in Kafka

Exchange = ScramServer | PlainServer | OAuthServer


class Stage(Enum):
    """The stage of a login."""

    CHOOSING = auto()
    EXCHANGING = auto()
    COMPLETE = auto()
    FAILED = auto()


class IllegalStateError(SaslError):
    """A message that is not allowed at this stage."""


class NotNowError(IllegalStateError):
    """A message for which a complete login has no use; the login stays complete."""


class UnsupportedMechanismError(SaslError):
    """A mechanism that the listener does not enable."""


@dataclass(frozen=True, slots=True)
class Users:
    """The lookup of credentials."""

    lookup: Lookup
    unknown: UnknownUsers
    tokens: TokenLookup | None = None  # delegation tokens, if enabled


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRules:
    """The login requirements of a listener.

    `session_s`: how long a login is valid, 0 without a limit; with a token, at most until that expires. `tokens` checks
    tokens.
    """

    mechanisms: Sequence[str]
    is_encrypted: bool
    max_frame_bytes: int
    timeout_s: float
    failure_delay_s: float
    session_s: float
    clock: Callable[[], float]
    tokens: "TokenChecker | None" = None
    wall_clock: Callable[[], float] = time


class Login:
    """The login of one connection."""

    __slots__ = ("_exchange", "_mechanism", "_reauthentication_at", "deadline", "expires_at", "is_by_token", "is_raw",
                 "principal", "rules", "session_s", "stage")  # fmt: skip

    def __init__(self, rules: LoginRules) -> None:
        self.rules = rules
        self.stage = Stage.CHOOSING
        self.deadline = rules.clock() + rules.timeout_s
        self.expires_at: float | None = None
        self.is_by_token = False  # whether the last login used a delegation token
        self.session_s = 0.0  # how long the last login is valid, 0 without a limit
        self.is_raw = False  # whether tokens come without Kafka's headers (SaslHandshake v0)
        self.principal: Principal | None = None
        self._reauthentication_at: float | None = None  # earliest start of the next re-authentication
        self._mechanism = NO_MECHANISM
        self._exchange: Exchange | None = None

    @property
    def mechanism(self) -> str:
        """The chosen mechanism; NO_MECHANISM before that."""
        return self._mechanism

    @property
    def is_complete(self) -> bool:
        """Whether any request is allowed, unless the login has expired."""
        return self.stage is Stage.COMPLETE

    @property
    def has_failed(self) -> bool:
        """Whether the connection must close."""
        return self.stage is Stage.FAILED

    @property
    def max_frame_bytes(self) -> int | None:
        """The limit of frames; None for the listener's."""
        return None if self.principal is not None else self.rules.max_frame_bytes

    def overdue(self, now: float) -> bool:
        """Return whether the client has taken too long to log in."""
        return self.principal is None and now > self.deadline

    def has_expired(self) -> bool:
        """Return whether the time to re-authenticate has passed."""
        return self.expires_at is not None and self.rules.clock() > self.expires_at

    def choose(self, mechanism: str, users: Users, *, is_raw: bool = False) -> None:
        """Begin an exchange. Raises SaslError; the login has then failed, unless it is a NotNowError."""
        if self.stage is Stage.COMPLETE:
            if self.expires_at is None:
                raise NotNowError("the login does not expire")
            now = self.rules.clock()
            if self._reauthentication_at is not None and now < self._reauthentication_at:
                raise self._useless("authenticated again less than a second ago")
            self._reauthentication_at = now + REAUTHENTICATION_PAUSE_S
            if mechanism != self._mechanism:
                raise self._fail(IllegalStateError("a connection cannot change its SASL mechanism"))
        elif self.stage is not Stage.CHOOSING:
            raise self._fail(IllegalStateError("a SASL exchange has begun already"))
        if mechanism not in self.rules.mechanisms:
            raise self._fail(UnsupportedMechanismError(
                f"unsupported SASL mechanism; the listener enables {', '.join(self.rules.mechanisms)}"
            ))  # fmt: skip
        self._mechanism, self.is_raw, self.stage = mechanism, is_raw, Stage.EXCHANGING
        if mechanism == PLAIN:
            self._exchange = PlainServer(users.lookup, users.unknown)
        elif mechanism == OAUTHBEARER:
            assert self.rules.tokens is not None
            self._exchange = OAuthServer(self.rules.tokens)
        else:
            nonce = token_urlsafe(NONCE_BYTES)
            self._exchange = ScramServer(MECHANISMS[mechanism], users.lookup, users.unknown, nonce, users.tokens)

    @property
    def exchange(self) -> Exchange:
        """The exchange in progress. Raises SaslError if there is none; the login, unless complete, has then failed."""
        if self.stage is Stage.COMPLETE:
            raise self._useless("the login is complete")
        if self.stage is not Stage.EXCHANGING or self._exchange is None:
            raise self._fail(IllegalStateError("no SASL exchange is in progress"))
        return self._exchange

    def advanced(self) -> None:
        """Complete the login if its exchange is complete. Raises SaslError, and fails, for another principal."""
        exchange = self._exchange
        if exchange is None or not exchange.is_complete:
            return
        principal = Principal(exchange.user)
        if self.principal not in {None, principal}:
            raise self._fail(SaslError("a connection cannot change its principal"))
        rules = self.rules
        self.principal, self._exchange, self.is_raw = principal, None, False
        self.stage = Stage.COMPLETE
        self.session_s = rules.session_s
        ends_at = None
        self.is_by_token = isinstance(exchange, ScramServer) and exchange.token is not None
        if isinstance(exchange, OAuthServer):
            ends_at = exchange.expires_at
        elif isinstance(exchange, ScramServer) and exchange.token is not None:
            ends_at = exchange.token.expires_at
        if ends_at is not None:
            of_token = min(max(ends_at - rules.wall_clock(), MIN_SESSION_S), MAX_SESSION_S)
            self.session_s = min(of_token, rules.session_s or of_token)
        self.expires_at = rules.clock() + self.session_s if self.session_s else None

    def failed(self) -> None:
        """Fail the login: the connection must close."""
        self.stage, self._exchange = Stage.FAILED, None

    def _useless(self, why: str) -> SaslError:
        return self._fail(IllegalStateError(why)) if self.has_expired() else NotNowError(why)

    def _fail(self, error: SaslError) -> SaslError:
        self.failed()
        return error
