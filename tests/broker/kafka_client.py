"""A raw client of the Kafka listener: says exactly what it is told to, by the names of Kafka's message definitions.

Requests are dicts with the fields of the tables in protocol/kafka (what is left out has its default), replies come back
as dicts likewise. Works against any broker, so that what is claimed of Kafka can be looked up in Kafka.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.protocol.kafka.messages import TABLES, body, frame, parsed, reply_body, with_defaults
from warmlog.protocol.frame import FrameReader
from warmlog.protocol.kafka.api import APIS, Api

BY_NAME = {api.name: api for api in APIS}


class KafkaClient:
    """One connection; one request at a time by `ask`, or several by `send` and `reply`."""

    def __init__(self, stream: trio.SocketStream, client_id: str = "test") -> None:
        self.stream = stream
        self.client_id = client_id
        self._reader = FrameReader()
        self._asked: list[tuple[Api, int]] = []

    async def send(self, name: str, version: int | None = None, /, **fields: Any) -> None:
        """Send a request: of the newest version that is served, or of the one given."""
        api = BY_NAME[name]
        chosen = api.last if version is None else version
        self._asked.append((api, chosen))
        values = with_defaults(TABLES[f"{name}Request"], chosen, fields)
        data = frame(api, chosen, body(f"{name}Request", api, chosen, values), client=self.client_id.encode())
        await self.stream.send_all(len(data).to_bytes(4) + bytes(data))

    async def reply(self) -> dict[str, Any]:
        """The reply to the oldest request that has none yet."""
        api, version = self._asked.pop(0)
        found = await self._frame()
        assert found is not None, f"closed instead of an answer to {api.name} {version}"
        framed = len(found).to_bytes(4) + bytes(found)
        return parsed(f"{api.name}Response", api, version, reply_body(api, version, [framed]))

    async def ask(self, name: str, version: int | None = None, /, **fields: Any) -> dict[str, Any]:
        """Send a request and return its reply."""
        await self.send(name, version, **fields)
        return await self.reply()

    async def _frame(self) -> memoryview | None:
        while (found := self._reader.next_frame()) is None:
            data = await self.stream.receive_some()
            if not data:
                return None
            self._reader.feed(bytes(data))
        return found


@asynccontextmanager
async def kafka_client(address: str, client_id: str = "test") -> AsyncIterator[KafkaClient]:
    """A connection to "host:port"."""
    host, port = address.rsplit(":", 1)
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield KafkaClient(stream, client_id)
