"""The broker's side of a connection to a peer, without sockets: decodes its requests and encodes responses."""

from typing import Any

from warmlog.protocol.frame import LENGTH_SIZE
from warmlog.protocol.kafka.api import API_BY_KEY, APIS, Call, Codec
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsRequest, ApiVersionsResponse, VersionRange
from warmlog.protocol.kafka.peer import PeerApi, PeerProtocol
from warmlog.protocol.kafka.peer_apis import API_VERSIONS

GREETING = ApiVersionsRequest(software_name="warmlog", software_version="1.0")
ALL = tuple(VersionRange(key=api.key, first=api.first, last=api.last) for api in APIS)


def received(frame: bytes, codec: Codec | None = None) -> Call:
    """Decode a request frame, whose length must be right."""
    assert int.from_bytes(frame[:LENGTH_SIZE]) == len(frame) - LENGTH_SIZE
    return (codec or Codec()).decode(memoryview(frame)[LENGTH_SIZE:])


def response_frame(call: Call, response: Any, codec: Codec | None = None) -> memoryview:
    """Return a response frame without its length."""
    return memoryview(b"".join(map(bytes, (codec or Codec()).encode(call, response))))[LENGTH_SIZE:]


def greeted(*ranges: VersionRange, base: tuple[VersionRange, ...] = ALL) -> PeerProtocol:
    """Return a protocol whose peer supports these ranges, and `base` for other APIs."""
    peer = PeerProtocol("test")
    given = {one.key: one for one in (*base, *ranges)}
    _, frame = peer.send(API_VERSIONS, GREETING)
    answer = response_frame(received(frame), ApiVersionsResponse(apis=tuple(given.values())))
    peer.decode(peer.match(answer), answer)
    assert peer.is_ready
    return peer


def only(api: PeerApi[Any, Any], version: int) -> PeerProtocol:
    """Return a protocol whose peer supports one version of an API."""
    return greeted(VersionRange(key=api.api.key, first=version, last=version))


def exchange(peer: PeerProtocol, api: PeerApi[Any, Any], request: Any, response: Any, codec: Codec) -> tuple[Any, Any]:
    """Pass a request and its response; return how the broker decoded the one, and the peer the other."""
    _, frame = peer.send(api, request)
    call = received(frame, codec)
    assert call.api is API_BY_KEY[api.api.key]
    answer = response_frame(call, response, codec)
    return call.request, peer.decode(peer.match(answer), answer)
