"""The entities of quotas, the valid values, and which of several quotas applies to a client.

    user      client-id      the quota of                              precedence
    NAME      NAME           this client of this user                  1
    NAME      default        any other client of this user             2
    NAME                     all clients of this user together         3
    default   NAME           this client of any other user             4
    default   default        any other client of any other user        5
    default                  all clients together of any other user    6
              NAME           this client, whoever the user             7
              default        any other client, whoever the user        8

A default is not shared: each user, client, or pair of both has its own quota with the default's value. An address's
quota has precedence over the default for addresses.

Source: org.apache.kafka.server.quota.ClientQuotaManager; org.apache.kafka.server.config.QuotaConfig;
org.apache.kafka.controller.ClientQuotaControlManager.
"""

import math
from collections import Counter
from collections.abc import ItemsView, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from warmlog.broker.security.acls import host_of

DEFAULT: Final = ""  # the name of a default; no entity has an empty name
MAX_LIMITS: Final = 1_000  # cached lookups; beyond it the cache is cleared
MAX_NAME: Final = 1024  # characters of a user or client id with a quota of its own

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
CLIENT_QUOTAS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
# The largest value of quotas that have to be whole numbers.
_MAX_WHOLE: Final[Mapping[str, float]] = {
    PRODUCER_BYTE_RATE: 2.0**63,
    CONSUMER_BYTE_RATE: 2.0**63,
    CONNECTION_CREATION_RATE: 2.0**31 - 1,
}
_FRACTION: Final = 1e-6  # a smaller fraction is a rounding error


class InvalidQuotaError(ValueError):
    """An entity or a value is invalid. `str()` names it."""


class QuotaEntity(NamedTuple):
    """The entity of quotas. None: the part does not matter; DEFAULT: the default."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def parts(self) -> tuple[tuple[str, str | None], ...]:
        """The entity as pairs of type and name, as on the wire, where None names the default."""
        named = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return tuple([(kind, name or None) for kind, name in named if name is not None])

    @property
    def text(self) -> str:
        """The entity as TYPE=NAME, or TYPE for a default, joined by slashes; names are percent-encoded."""
        return "/".join([kind if name is None else f"{kind}={quote(name, safe='')}" for kind, name in self.parts])

    @classmethod
    def parse(cls, text: str) -> "QuotaEntity":
        """Parse such a text. Raises InvalidQuotaError."""
        pairs = [part.partition("=") for part in text.split("/")]
        return cls.of(tuple([(kind, unquote(name) if equals else None) for kind, equals, name in pairs]))

    @classmethod
    def of(cls, parts: tuple[tuple[str, str | None], ...]) -> "QuotaEntity":
        """Return the entity of pairs of type and name. Raises InvalidQuotaError."""
        if not parts:
            raise InvalidQuotaError("the entity is empty")
        names: dict[str, str] = {}
        for kind, name in parts:
            if kind not in {USER, CLIENT_ID, IP}:
                raise InvalidQuotaError(f"unknown entity type {kind}")
            if kind in names:
                raise InvalidQuotaError(f"entity type {kind} occurs twice")
            if name == "":
                raise InvalidQuotaError(f"the name of the {kind} is empty")
            if name is not None and len(name) > MAX_NAME:
                raise InvalidQuotaError(f"the name of the {kind} has more than {MAX_NAME:,} characters")
            names[kind] = DEFAULT if name is None else name
        address = names.get(IP)
        if address is not None and len(names) > 1:
            raise InvalidQuotaError("an ip cannot be combined with a user or client-id")
        return cls(names.get(USER), names.get(CLIENT_ID), address and _address(address))


def check_quota(entity: QuotaEntity, key: str, value: float) -> None:
    """Raise InvalidQuotaError for a quota that an entity cannot have."""
    known = (CONNECTION_CREATION_RATE,) if entity.ip is not None else CLIENT_QUOTAS
    if key not in known:
        kind = "an ip" if entity.ip is not None else "users and clients"
        raise InvalidQuotaError(f"unknown quota {key}: {kind} can have {', '.join(known)}")
    if not (value > 0 and math.isfinite(value)):
        raise InvalidQuotaError(f"{key} must be greater than 0, not {value:g}")
    most = _MAX_WHOLE.get(key)
    if most is None:
        return
    if value > most:
        raise InvalidQuotaError(f"{key} is at most {int(most)}, not {value:.0f}")
    if value % 1.0 > _FRACTION:
        raise InvalidQuotaError(f"{key} must be a whole number, not {value}")


def _address(text: str) -> str:
    """Return an address in its usual form. Raises InvalidQuotaError for anything else: names are not resolved."""
    host = host_of(text)
    if host.address is None:
        raise InvalidQuotaError(f"{text} is not an IP address")
    return host.text


class Limit(NamedTuple):
    """The quota of a client, and its owner: clients with the same `user` and `client_id` share it."""

    bound: float
    user: str | None
    client_id: str | None


class QuotaIndex:
    """The quotas of a cluster by entity.

    `kinds` counts the users and clients that have each quota; `limits_clients`: whether any has one.
    """

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.limits_clients = False
        self._values: dict[QuotaEntity, Mapping[str, float]] = {}
        self._limits: dict[tuple[str, str, str], Limit | None] = {}  # limits looked up since the last change

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> ItemsView[QuotaEntity, Mapping[str, float]]:
        """Return all entities and their quotas."""
        return self._values.items()

    def of(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the quotas of an entity, empty if it has none."""
        return self._values.get(entity, {})

    def set(self, entity: QuotaEntity, values: Mapping[str, float]) -> None:
        """Replace the quotas of an entity."""
        self._limits.clear()
        self.kinds.subtract(self.of(entity).keys())
        self._values.pop(entity, None)
        if values:
            self._values[entity] = values
        self.kinds.update(values.keys())
        self.limits_clients = any(self.kinds[kind] for kind in CLIENT_QUOTAS)

    def limit(self, kind: str, user: str, client_id: str) -> Limit | None:
        """Return the quota of one kind that applies to a client of a user."""
        if not self.kinds[kind]:
            return None
        key = kind, user, client_id
        if key in self._limits:
            return self._limits[key]
        value = self._find(kind, user, client_id)
        if len(client_id) <= MAX_NAME:
            if len(self._limits) >= MAX_LIMITS:
                self._limits.clear()
            self._limits[key] = value
        return value

    def _find(self, kind: str, user: str, client_id: str) -> Limit | None:
        values = self._values
        for entity in (
            (user, client_id, None),
            (user, DEFAULT, None),
            (user, None, None),
            (DEFAULT, client_id, None),
            (DEFAULT, DEFAULT, None),
            (DEFAULT, None, None),
            (None, client_id, None),
            (None, DEFAULT, None),
        ):
            value = values.get(entity)  # type: ignore[call-overload]  # equal to the named tuple
            if value is not None and kind in value:
                return Limit(value[kind], None if entity[0] is None else user, None if entity[1] is None else client_id)
        return None

    def connection_rate(self, address: str) -> float | None:
        """Return how many connections an address may open per second; None for no limit."""
        if not self.kinds[CONNECTION_CREATION_RATE]:
            return None
        for ip in (host_of(address).text, DEFAULT):
            rate = self.of(QuotaEntity(ip=ip)).get(CONNECTION_CREATION_RATE)
            if rate is not None:
                return rate
        return None
