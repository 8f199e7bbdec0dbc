"""Measure the bytes and time of clients, and compute how long those above their quotas have to pause.

A share is the unit that a quota applies to: a user, a client id, or a pair of both (`entities.Limit`). Its `Rate`
exists while it is used. Clients can invent any number of client ids, so the number of shares and the length of their
names are bounded.

Time spent for a client is added to `Client.worked_s`, and charged with its next request.

Source: org.apache.kafka.server.quota.ClientQuotaManager; kafka.server.ClientRequestQuotaManager.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeAlias

from warmlog.broker.security.principal import ANONYMOUS, Principal
from warmlog.broker.security.quotas.entities import (
    CLIENT_QUOTAS,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Limit,
    QuotaIndex,
)
from warmlog.broker.security.quotas.rates import MS, Rate, TokenBucket, Windows

MAX_OF_USER: Final = 1_000  # shares per user; so one with many client ids does not displace those of others
TRIES: Final = 16  # shares examined to find one whose client does not pause
MAX_SHARES: Final = 10_000  # about 2 KiB each; the least recently used ones are dropped first
IDLE_MS: Final = 3_600_000  # idle time after which a share is dropped
MAX_SERIES: Final = 100  # number of most recently throttled shares with metrics of their own
LONG_NAME: Final = 256  # characters; longer names are replaced by their beginning and a hash
PERCENT: Final = 100.0
DEFAULT_WINDOWS: Final = Windows()

ShareKey: TypeAlias = tuple[str, str | None, str | None]  # kind of quota, user, client id


class Client(Protocol):
    """A measured client: a connection's session.

    `worked_s`: its time that is not charged yet. `throttle_ms`: how long it has to pause after the current request.
    """

    principal: Principal
    client_id: str
    worked_s: float
    throttle_ms: int


class _Share:
    """The usage of a share, the time of its last use, and the end of its client's pause.

    `user`: the principal that it belongs to. `bucket`: the tokens for partitions that it creates and deletes.
    """

    __slots__ = ("bucket", "paused_until", "rate", "used_at", "user")

    def __init__(self, windows: Windows, user: str) -> None:
        self.rate = Rate(windows)
        self.bucket: TokenBucket | None = None
        self.used_at = self.paused_until = 0
        self.user = user


class _Recorded(NamedTuple):
    """The result of recording a value. `was_idle`: whether the rate was 0 before."""

    throttle_ms: int
    was_idle: bool
    key: ShareKey


class Throttled(NamedTuple):
    """How long a client has to pause, and whether its fetch is answered without records, to be repeated."""

    throttle_ms: int
    is_empty: bool


class ClientQuotas:
    """The quotas of users and client ids at one broker. Belongs to the event loop."""

    def __init__(
        self,
        index: QuotaIndex,
        windows: Windows,
        clock: Callable[[], float],
        *,
        mutation_windows: Windows = DEFAULT_WINDOWS,
    ) -> None:
        """Apply these quotas. `clock` returns seconds. `mutation_windows`: the windows of controller_mutation_rate."""
        self._index = index
        self._windows = windows
        self._mutation_windows = mutation_windows
        self._clock = clock
        self._shares: dict[ShareKey, _Share] = {}  # the least recently used first
        self._of_users: dict[str, dict[ShareKey, None]] = {}  # each user's keys, in the same order
        self._series: dict[ShareKey, float] = {}  # seconds by throttled share, the oldest first
        self._throttled = dict.fromkeys(CLIENT_QUOTAS, 0)  # number of throttled replies
        self._throttled_s = dict.fromkeys(CLIENT_QUOTAS, 0.0)

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def is_on(self) -> bool:
        """Whether any user or client has a quota."""
        return self._index.limits_clients

    # -- measuring --

    def produced(self, client: Client, size: int, *, is_timed: bool) -> int:
        """Record the bytes of a produce request; return how many milliseconds the client has to pause.

        `is_timed`: charge its time, too, which Kafka does not for acks=0.
        """
        now = self._now()
        violations = [self._record(PRODUCER_BYTE_RATE, client, size, now)]
        if is_timed:
            violations.append(self._charge(client, now))
        return self._worst(violations)

    def fetched(self, client: Client, size: int) -> Throttled:
        """Record the bytes of a fetch response. If the client has to pause, it gets none, and they are not recorded.

        A response that alone exceeds the quota, or that took too long, is sent and recorded if nothing else was
        recorded: otherwise the client would never get it.
        """
        now = self._now()
        of_bytes, of_time = self._record(CONSUMER_BYTE_RATE, client, size, now), self._charge(client, now)
        violations = [each for each in (of_bytes, of_time) if each is not None and each.throttle_ms]
        is_empty = any(not each.was_idle for each in violations)
        if is_empty and of_bytes is not None:
            self._shares[of_bytes.key].rate.record(-size, now)
        return Throttled(self._worst(violations), is_empty)

    def requested(self, client: Client) -> int:
        """Charge the time of a request; return how many milliseconds the client has to pause."""
        return self._worst([self._charge(client, self._now())])

    def max_fetch_bytes(self, client: Client) -> int | None:
        """Return how much a client that was idle can fetch without a pause; None without a limit."""
        limit = self._index.limit(CONSUMER_BYTE_RATE, client.principal.name, client.client_id)
        if limit is None:
            return None
        samples, window_ms = self._windows
        return max(1, int(limit.bound * max(1, samples - 1) * window_ms / MS))

    def mutate(self, client: Client, partitions: int, *, is_strict: bool) -> bool:
        """Record partitions that a client creates or deletes; return whether it may. Sets its `throttle_ms`.

        A client that knows the error (`is_strict`) is refused while its tokens are overdrawn; others are allowed to,
        and then have to pause.
        """
        now = self._now()
        entry = self._share(CONTROLLER_MUTATION_RATE, client, now)
        if entry is None:
            return True
        limit, share, key = entry
        if share.bucket is None:
            share.bucket = TokenBucket(self._mutation_windows)
        if not is_strict:
            share.bucket.record(partitions, limit.bound, now)
        throttle_ms = share.bucket.throttle_ms(limit.bound, now)
        share.paused_until = now + throttle_ms
        if is_strict and not throttle_ms:
            share.bucket.record(partitions, limit.bound, now)
        if throttle_ms > client.throttle_ms:
            self._count(key, throttle_ms - client.throttle_ms, is_first=not client.throttle_ms)
            client.throttle_ms = throttle_ms
        return not (is_strict and throttle_ms)

    def _now(self) -> int:
        return int(self._clock() * MS)

    def _charge(self, client: Client, now: int) -> _Recorded | None:
        """Record a client's time. The resulting pause lasts at most one window."""
        worked_s, client.worked_s = client.worked_s, 0.0
        violation = self._record(REQUEST_PERCENTAGE, client, worked_s * PERCENT, now)
        return violation and violation._replace(throttle_ms=min(violation.throttle_ms, self._windows.window_ms))

    def _record(self, kind: str, client: Client, value: float, now: int) -> _Recorded | None:
        """Record a value, if the client has such a quota."""
        entry = self._share(kind, client, now)
        if entry is None:
            return None
        limit, share, key = entry
        was_idle = share.rate.total(now) <= 0
        share.rate.record(value, now)
        throttle_ms = share.rate.throttle_ms(limit.bound, now)
        share.paused_until = now + throttle_ms
        return _Recorded(throttle_ms, was_idle, key)

    def _share(self, kind: str, client: Client, now: int) -> tuple[Limit, _Share, ShareKey] | None:
        """Return a client's quota of a kind, and its share; None if there is no quota."""
        limit = self._index.limit(kind, client.principal.name, client.client_id)
        if limit is None:
            return None
        key = kind, _bounded(limit.user), _bounded(limit.client_id)
        share = self._shares.pop(key, None)
        if share is None:
            user = _bounded(client.principal.name) or ""
            self._forget(user, now)
            share = _Share(self._windows, user)
            self._of_users.setdefault(user, {})[key] = None
        else:
            of_user = self._of_users[share.user]
            del of_user[key]
            of_user[key] = None
        self._shares[key] = share  # now the most recently used one
        share.used_at = now
        return limit, share, key

    def _forget(self, user: str, now: int) -> None:
        """Drop idle shares and, if there are too many, one that has not been used for long.

        If the user has many, it is one of theirs. A pausing client keeps its share, unless many pause.
        """
        while self._shares and now - self._shares[key := next(iter(self._shares))].used_at >= IDLE_MS:
            self._remove(key)
        of_user = self._of_users.get(user, {})
        if user != ANONYMOUS.name and len(of_user) >= MAX_OF_USER:
            self._remove(self._forgettable(of_user, now))
        elif len(self._shares) >= MAX_SHARES:
            self._remove(self._forgettable(self._shares, now))

    def _forgettable(self, keys: Iterable[ShareKey], now: int) -> ShareKey:
        """Return one of the least recently used shares, preferably of a client that does not pause."""
        oldest = list(islice(keys, TRIES))
        return next((key for key in oldest if self._shares[key].paused_until <= now), oldest[0])

    def _remove(self, key: ShareKey) -> None:
        of_user = self._of_users[user := self._shares.pop(key).user]
        del of_user[key]
        if not of_user:
            del self._of_users[user]

    # -- metrics --

    def _worst(self, recorded: Sequence[_Recorded | None]) -> int:
        """Return the longest pause, and count it."""
        worst = max((each for each in recorded if each is not None), default=None)
        if worst is None or not worst.throttle_ms:
            return 0
        self._count(worst.key, worst.throttle_ms)
        return worst.throttle_ms

    def _count(self, key: ShareKey, throttle_ms: int, *, is_first: bool = True) -> None:
        """Count a pause of a share; `is_first`: it does not extend an already counted one."""
        seconds = throttle_ms / MS
        self._throttled[key[0]] += is_first
        self._throttled_s[key[0]] += seconds
        self._series[key] = self._series.pop(key, 0.0) + seconds
        if len(self._series) > MAX_SERIES:
            del self._series[next(iter(self._series))]

    def throttled(self) -> Iterator[tuple[tuple[str], float]]:
        """Return the throttled replies of each kind."""
        return ((((kind,), count)) for kind, count in self._throttled.items())

    def throttled_s(self) -> Iterator[tuple[tuple[str], float]]:
        """Return the seconds of pauses of each kind."""
        return ((((kind,), seconds)) for kind, seconds in self._throttled_s.items())

    def throttled_s_of_shares(self) -> Iterator[tuple[tuple[str, str, str], float]]:
        """Return the seconds of pauses of the most recently throttled shares."""
        for (kind, user, client_id), seconds in list(self._series.items()):
            yield (kind, user or "", client_id or ""), seconds


def _bounded(name: str | None) -> str | None:
    """Return a name, or a short replacement for a long one."""
    if name is None or len(name) <= LONG_NAME:
        return name
    return f"{name[:32]}...{blake2b(name.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"
