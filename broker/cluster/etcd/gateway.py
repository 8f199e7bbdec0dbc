"""The messages of etcd's JSON gateway that a cluster uses.

The gateway maps each call of etcd's API to a POST of a JSON object: `Range` of the service `KV` is `/v3/kv/range`.
Bytes are base64, 64-bit integers are text, and fields that are zero, false or empty are omitted. A response of
`/v3/lease/keepalive` is one line, `{"result": ...}`; `/v3/watch` responds with such lines until it is cancelled.

Source: etcd's api/etcdserverpb/rpc.proto; google.rpc.Code for the codes of errors.
"""

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct, field

RANGE = "/v3/kv/range"
TXN = "/v3/kv/txn"
WATCH = "/v3/watch"
GRANT = "/v3/lease/grant"
KEEP_ALIVE = "/v3/lease/keepalive"
REVOKE = "/v3/lease/revoke"
TIME_TO_LIVE = "/v3/lease/timetolive"
COMPACT = "/v3/kv/compaction"
AUTHENTICATE = "/v3/auth/authenticate"

INVALID_ARGUMENT = 3
NOT_FOUND = 5
PERMISSION_DENIED = 7
FAILED_PRECONDITION = 9  # response to Authenticate: authentication is not enabled
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
UNAVAILABLE = 14
UNAUTHENTICATED = 16

COMPACTED = "required revision has been compacted"  # in the message of an OUT_OF_RANGE
LEASE_NOT_FOUND = "requested lease not found"  # in the message of a NOT_FOUND
# In the message of an INVALID_ARGUMENT: no token, or users and roles have changed since the token was issued.
_TOKEN_REFUSALS = ("user name is empty", "revision of auth store is old")
COMMON_NAME = b"CommonName of client"  # in a response that is not JSON: see `connection`

T = TypeVar("T")


class _Message(Struct, frozen=True, omit_defaults=True, gc=False):
    """A message; fields with their default are omitted."""


class Header(_Message, frozen=True):
    """The id of the responding cluster, and its revision."""

    cluster_id: int = 0
    revision: int = 0


class EtcdKeyValue(_Message, frozen=True):
    """A key and its value; in the event of a deletion only the key and the revision that deleted it."""

    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    lease: int = 0


class RangeRequest(_Message, frozen=True):
    """Read keys from `key` up to `range_end` (exclusive), or only `key`, as of `revision`; 0 is the latest."""

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    revision: int = 0


class RangeResponse(_Message, frozen=True):
    """The keys, in order. `more`: there are further ones beyond the limit."""

    header: Header
    kvs: list[EtcdKeyValue] = []
    more: bool = False


class PutRequest(_Message, frozen=True):
    """Write a key."""

    key: bytes
    value: bytes = b""
    lease: int = 0


class DeleteRangeRequest(_Message, frozen=True):
    """Delete a key."""

    key: bytes


class RequestOp(_Message, frozen=True):
    """One operation of a transaction."""

    request_put: PutRequest | None = None
    request_delete_range: DeleteRangeRequest | None = None


class ModCompare(Struct, frozen=True, gc=False):
    """The condition that a key was last written at a revision; 0: that it does not exist."""

    key: bytes
    mod_revision: int = 0
    target: str = "MOD"
    result: str = "EQUAL"


class TxnRequest(_Message, frozen=True):
    """`success` if all comparisons hold, otherwise `failure`."""

    compare: list[ModCompare] = []
    success: list[RequestOp] = []
    failure: list[RequestOp] = []


class TxnResponse(_Message, frozen=True):
    """Whether all comparisons held."""

    header: Header
    succeeded: bool = False


class GrantRequest(_Message, frozen=True):
    """Create a lease of `ttl` seconds."""

    ttl: int = field(name="TTL")


class LeaseResponse(_Message, frozen=True):
    """A lease that was created or renewed, and how many seconds it lasts: 0 if there is no such lease."""

    header: Header
    id: int = field(name="ID", default=0)
    ttl: int = field(name="TTL", default=0)


class TimeToLiveResponse(_Message, frozen=True):
    """The remaining time of a lease and its full time, in seconds; -1 if there is no such lease."""

    header: Header
    ttl: int = field(name="TTL", default=0)
    granted_ttl: int = field(name="grantedTTL", default=0)


class LeaseRequest(_Message, frozen=True):
    """Renew or revoke a lease, or query its remaining time."""

    id: int = field(name="ID")


class HeaderResponse(_Message, frozen=True):
    """A response with nothing but a header."""

    header: Header


class WatchCreateRequest(_Message, frozen=True):
    """Watch a range of keys from a revision on. `progress_notify`: also report the revision periodically."""

    key: bytes
    range_end: bytes = b""
    start_revision: int = 0
    progress_notify: bool = False


class WatchRequest(_Message, frozen=True):
    """The only message that a client of `/v3/watch` sends."""

    create_request: WatchCreateRequest


class Event(_Message, frozen=True):
    """A change of a key. `type` is PUT or DELETE."""

    kv: EtcdKeyValue
    type: str = "PUT"


class WatchResponse(_Message, frozen=True):
    """Changes; without any, the watch was created, was cancelled, or has reached a revision."""

    header: Header
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: list[Event] = []


class AuthenticateRequest(_Message, frozen=True):
    """Request a token."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"AuthenticateRequest({self.name!r})"


class AuthenticateResponse(_Message, frozen=True):
    """A token, to be sent with calls in the header `authorization`."""

    token: str


class CompactRequest(_Message, frozen=True):
    """Discard the history before a revision."""

    revision: int


class Status(_Message, frozen=True):
    """An error. etcd 3.4 repeats the message as `error`."""

    code: int = 0
    message: str = ""

    @property
    def asks_for_token(self) -> bool:
        """Whether the call was refused, without any effect, because its token is missing or no longer valid."""
        return self.code == UNAUTHENTICATED or (
            self.code == INVALID_ARGUMENT and any(each in self.message for each in _TOKEN_REFUSALS)
        )


class Line(_Message, Generic[T], frozen=True):
    """One line of a streamed response."""

    result: T | None = None
    error: Status | None = None


def decode(body: bytes, message: type[T]) -> T:
    """Return the message in a body. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=message, strict=False)


encode = msgspec.json.encode


def range_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with a prefix, which must not end with the byte 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
