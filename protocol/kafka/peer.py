"""The client side of Kafka's protocol, without I/O: encode requests to another broker and decode its responses.

    PeerProtocol      one connection: correlation ids, the versions that the peer supports, requests not yet answered
    peer_apis.py      the APIs that can be requested, and the versions that can be used

Requests and responses are the values of `messages/`, encoded and decoded by the same tables as on the broker's side.

Invariants:
1. Nothing else is sent before the response to ApiVersions has arrived. The first attempt uses the newest version of
   this
side. A peer that does not support it responds in version 0 with its range; the request is then repeated once within
that range.
2. A request is encoded in the newest version that the table, the peer and the request itself allow.
3. Responses arrive in the order of the requests. Any other correlation id is an error, after which the connection must
   be closed: the rest of the stream cannot be trusted.
4. Records in a response are views of its frame, never copies.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct as Layout
from typing import Any, Generic, TypeVar

from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.frame import LENGTH
from warmlog.protocol.kafka.api import API_VERSIONS_KEY, Api
from warmlog.protocol.kafka.codec.bounds import NO_LIMIT, MalformedError
from warmlog.protocol.kafka.codec.engine import ENGINE, Engine
from warmlog.protocol.kafka.codec.schema import LAST_VERSION, Struct
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsResponse, VersionRange

Q = TypeVar("Q")
R = TypeVar("R")

_HEADER = Layout(">hhih")  # API key, version, correlation id, length of the client id
_CORRELATION = Layout(">i")
_ERROR = Layout(">h")
_MAX_CORRELATION_ID = (1 << 31) - 1
_HEADER_TAGS = ENGINE.reader(Struct(), 0, flexible=True, title="the header of a response")


class PeerProtocolError(ProtocolError):
    """The peer sent bytes that no Kafka broker sends. The connection must be closed."""


class PeerVersionError(ProtocolError):
    """The peer supports no usable version of an API. Retrying does not help."""

    code = ErrorCode.UNSUPPORTED_VERSION


def _every_version(_: Any) -> tuple[int, int]:
    return 0, LAST_VERSION


@dataclass(frozen=True, slots=True, eq=False)
class PeerApi(Generic[Q, R]):
    """An API that can be requested from a peer.

    span(request): the versions that can express this request. bound: whether requests and responses are values;
    otherwise they are in the mapping form (`codec/schema.py`).
    """

    api: Api
    first: int  # versions that can be used, inclusive
    last: int
    span: Callable[[Q], tuple[int, int]] = _every_version
    bound: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class SentRequest:
    """A request without a response yet."""

    api: PeerApi[Any, Any]
    version: int
    correlation_id: int
    request: Any


class PeerProtocol:
    """Encodes the requests of one connection and decodes their responses.

    Send the frames of `send` in the order of the calls. For each received frame call `match`, then `decode`; a
    response that is no longer awaited need not be decoded.
    """

    def __init__(self, client_id: str, engine: Engine = ENGINE) -> None:
        self._client_id = client_id.encode()
        self._engine = engine
        self._versions: dict[int, VersionRange] | None = None
        self._greeting = VersionRange(key=API_VERSIONS_KEY, first=0, last=LAST_VERSION)
        self._greetings_left = 2
        self._next_id = 0
        self._sent: deque[SentRequest] = deque()

    @property
    def is_ready(self) -> bool:
        """Whether the peer's versions are known."""
        return self._versions is not None

    @property
    def unanswered(self) -> int:
        """Number of requests without a response."""
        return len(self._sent)

    def supports(self, api: PeerApi[Any, Any], version: int) -> bool:
        """Return whether a version of an API can be used with this peer."""
        versions = self._range(api.api.key)
        return versions is not None and api.first <= version <= api.last and versions.first <= version <= versions.last

    def version_of(self, api: PeerApi[Q, Any], request: Q) -> int:
        """Return the version to use for a request. Raises PeerVersionError."""
        versions = self._range(api.api.key)
        lowest, highest = api.span(request)
        lowest, highest = max(lowest, api.first), min(highest, api.last)
        if versions is None:
            raise PeerVersionError(f"the peer does not support {api.api.name}; version {lowest} or newer is needed")
        version = min(highest, versions.last)
        if version < max(lowest, versions.first):
            raise PeerVersionError(
                f"the peer supports {api.api.name} versions {versions.first} to {versions.last};"
                f" one from {lowest} to {highest} is needed"
            )
        return version

    def send(self, api: PeerApi[Q, Any], request: Q) -> tuple[int, bytes]:
        """Encode a request; return its correlation id and its frame. Raises PeerVersionError and UnwritableError."""
        version = self.version_of(api, request)
        number = self._next_id
        flexible = api.api.is_flexible(version)
        title = f"the {api.api.name} request, version {version}"
        writer = self._engine.writer(api.api.request, version, flexible=flexible, bound=api.bound, title=title)
        start = LENGTH.pack(0) + _HEADER.pack(api.api.key, version, number, len(self._client_id)) + self._client_id
        data = bytearray(writer.write(request, start + (b"\0" if flexible else b""), request))
        LENGTH.pack_into(data, 0, len(data) - LENGTH.size)
        self._next_id = 0 if number == _MAX_CORRELATION_ID else number + 1
        self._sent.append(SentRequest(api, version, number, request))
        return number, bytes(data)

    def match(self, frame: memoryview) -> SentRequest:
        """Return the request that a frame (without its length) responds to. Raises PeerProtocolError."""
        if len(frame) < _CORRELATION.size:
            raise PeerProtocolError(f"a frame of {len(frame)} bytes is no response")
        (number,) = _CORRELATION.unpack_from(frame)
        if not self._sent:
            raise PeerProtocolError(f"a response with correlation id {number}, but no request is open")
        sent = self._sent[0]
        if number != sent.correlation_id:
            raise PeerProtocolError(f"a response with correlation id {number} instead of {sent.correlation_id}")
        return self._sent.popleft()

    def decode(self, sent: SentRequest, frame: memoryview, limit: int = NO_LIMIT) -> Any:
        """Decode the response to a request.

        Raises LargeMessageError after `limit` units of work (`codec/bounds.py`): then call it in a worker thread
        without a limit. Raises PeerProtocolError if the frame is not a valid response to the request.
        """
        api, version = sent.api.api, sent.version
        is_greeting = api.key == API_VERSIONS_KEY
        if is_greeting and frame[_CORRELATION.size :][: _ERROR.size] == _ERROR.pack(ErrorCode.UNSUPPORTED_VERSION):
            version = 0
        flexible = api.is_flexible(version)
        title = f"the {api.name} response, version {version}"
        reader = self._engine.reader(api.response, version, flexible=flexible, bound=sent.api.bound, title=title)
        try:
            position = _CORRELATION.size
            if flexible and not is_greeting:
                position = _after_tags(frame, position)
            response, _ = reader.read(frame, position, limit=limit)
        except (MalformedError, UnicodeDecodeError) as problem:
            raise PeerProtocolError(f"no {api.name} response of version {version}: {problem}") from None
        if is_greeting:
            self._learn(response)
        return response

    def _range(self, key: int) -> VersionRange | None:
        if key == API_VERSIONS_KEY and self._versions is None:
            if not self._greetings_left:
                raise PeerVersionError("the peer supports no version of ApiVersions that is known here")
            return self._greeting
        if self._versions is None:
            raise PeerVersionError("the peer's versions are not known yet")
        return self._versions.get(key)

    def _learn(self, response: ApiVersionsResponse) -> None:
        """Store the versions from a response to ApiVersions, or the version for a second attempt."""
        self._greetings_left -= 1
        supported = {supported_api.key: supported_api for supported_api in response.apis}
        if response.error is ErrorCode.NONE:
            self._versions = supported
        elif response.error is ErrorCode.UNSUPPORTED_VERSION:
            # without a range, as from brokers before KIP-511, use version 0, which all brokers support
            self._greeting = supported.get(API_VERSIONS_KEY, VersionRange(key=API_VERSIONS_KEY, first=0, last=0))
        else:
            raise PeerProtocolError(f"ApiVersions was refused: {response.error.name}")


def _after_tags(frame: memoryview, position: int) -> int:
    """Return the position after the tagged fields of a response's header."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    _, position = _HEADER_TAGS.read(frame, position)
    return position
