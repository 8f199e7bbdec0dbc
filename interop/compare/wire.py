"""Blocking connections that speak Kafka's protocol from the tables of fields, for requests of any shape."""

import socket
from collections.abc import Mapping
from struct import Struct as Layout
from types import TracebackType
from typing import Any, Self

from warmlog.protocol.kafka.api import APIS, Api
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.codec.schema import Array, Field, Primitive, Struct

BY_NAME = {api.name: api for api in APIS}
CLIENT_ID = b"compare"
TIMEOUT_S = 30

_HEADER = Layout(">hhih")


class ClosedError(Exception):
    """The broker closed the connection instead of answering."""


class Connection:
    """One connection to a broker. Requests may be pipelined; responses come in the order of the requests."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._asked: list[tuple[Api, int, int]] = []
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, abandoning unanswered requests."""
        self._socket.close()

    def send(self, api: Api, version: int, fields: Mapping[str, Any], *, answered: bool = True) -> None:
        """Send a request. Omitted fields have their default; fields that the version lacks are dropped."""
        flexible = api.is_flexible(version)
        body = ENGINE.writer(api.request, version, flexible=flexible).write(complete(api.request, fields))
        self._sent += 1
        header = _HEADER.pack(api.key, version, self._sent, len(CLIENT_ID)) + CLIENT_ID + (b"\0" if flexible else b"")
        frame = header + body
        if answered:
            self._asked.append((api, version, self._sent))
        try:
            self._socket.sendall(len(frame).to_bytes(4) + frame)
        except OSError as error:
            raise ClosedError(str(error)) from None

    def receive(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Return the response to the oldest unanswered request.

        Raises ClosedError, and TimeoutError if the broker sends nothing for that long; after either, the connection
        cannot be used.
        """
        self._socket.settimeout(timeout_s)
        api, version, correlation_id = self._asked.pop(0)
        frame = self._take(int.from_bytes(self._take(4)))
        if int.from_bytes(frame[:4]) != correlation_id:
            raise RuntimeError(f"an answer to request {int.from_bytes(frame[:4])} instead of {correlation_id}")
        flexible = api.is_flexible(version)
        start = 5 if flexible and api.name != "ApiVersions" else 4
        values, end = ENGINE.reader(api.response, version, flexible=flexible).read(memoryview(frame[start:]))
        if end != len(frame) - start:
            raise RuntimeError(f"{len(frame) - start - end} bytes follow the {api.name} response, version {version}")
        return present(api.response, version, values)

    def _take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._socket.recv(size - len(data))
            except ConnectionError as error:
                raise ClosedError(str(error)) from None
            if not piece:
                raise ClosedError("closed")
            data += piece
        return bytes(data)


def complete(table: Struct, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all fields. Raises KeyError for a field that the table does not have."""
    if unknown := given.keys() - {field.name for field in table.fields}:
        raise KeyError(f"no such field: {', '.join(sorted(unknown))}")
    return {field.name: _completed(field, given) for field in table.fields}


def _completed(field: Field, given: Mapping[str, Any]) -> Any:
    value = given.get(field.name, field.absent)
    if isinstance(field.kind, Struct) and value is not None:
        return complete(field.kind, value)
    if isinstance(field.kind, Array) and isinstance(field.kind.of, Struct) and value is not None:
        of = field.kind.of
        return tuple(complete(of, one) for one in value)
    return value


def present(table: Struct, version: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the fields that the version has; data is copied."""
    return {
        field.name: _present(field.kind, version, values[field.name]) for field in table.fields if field.is_in(version)
    }


def _present(kind: Primitive | Array | Struct, version: int, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, Struct):
        return present(kind, version, value)
    if isinstance(kind, Array):
        return [_present(kind.of, version, one) for one in value]
    return bytes(value) if isinstance(value, memoryview) else value
