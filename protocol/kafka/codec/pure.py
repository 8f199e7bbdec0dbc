"""Run plans in Python, with the same classes, results and errors as the compiled engine (`_compiled.pyx`)."""

from collections.abc import Callable, Sequence, Sized
from struct import Struct, error
from typing import Any, NoReturn

from warmlog.protocol.kafka.codec.bounds import MAX_ELEMENTS, NO_LIMIT, InvalidRequestError, MalformedError
from warmlog.protocol.kafka.codec.interpreter import Reply, read_struct, write_struct
from warmlog.protocol.kafka.codec.plan import ReadPlan, WritePlan, all_steps
from warmlog.protocol.kafka.codec.reader import FlexibleReader, Reader, _no_names
from warmlog.protocol.kafka.codec.writer import FlexibleWriter, Writer

_HEADER = Struct(">hhi")  # key, version, correlation id
_REPLY_START = Struct(">ii")  # frame length, correlation id


class MessageReader:
    """Reads messages by one plan. Not bound to a frame; safe to share between threads."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan

    def read(
        self,
        frame: memoryview,
        position: int = 0,
        names: Callable[[bytes], str | None] = _no_names,
        limit: int = NO_LIMIT,
        elements: int = MAX_ELEMENTS,
    ) -> tuple[Any, int]:
        """Read a message at `position`; return it and the position after it. `elements`: limit for all its arrays."""
        reader = (FlexibleReader if self.plan.flexible else Reader)(frame, position, names, limit)
        reader.elements_left = elements
        return self.run(reader), reader.position

    def run(self, reader: Reader) -> Any:
        """Read a message where the reader is."""
        return reader.finish(read_struct(self.plan, reader))


class MessageWriter:
    """Writes messages by one plan. Safe to share between threads."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan
        self._per_reply = tuple([step for step in all_steps(plan) if step.per_reply is not None])

    def write(self, value: Any, start: bytes = b"", request: Any = None) -> bytes:
        """Write a message whose records are bytes, after `start`. Raises UnwritableError."""
        writer = (FlexibleWriter if self.plan.flexible else Writer)(start)
        self.run(writer, value, request)
        return writer.written()

    def write_each(self, values: Sequence[Any], start: bytes = b"", request: Any = None) -> list[bytes]:
        """Write a message for each value, as `write` does. What is computed once for a reply is computed once."""
        flexible, reply = self.plan.flexible, self._reply(request)
        written = []
        for value in values:
            writer = (FlexibleWriter if flexible else Writer)(start)
            write_struct(self.plan, writer, value, reply)
            written.append(writer.written())
        return written

    def run(self, writer: Writer, value: Any, request: Any) -> None:
        """Write a message by a writer."""
        write_struct(self.plan, writer, value, self._reply(request))

    def _reply(self, request: Any) -> Reply:
        values = {step: step.per_reply(request, step.version) for step in self._per_reply if step.per_reply is not None}
        return Reply(request, values)


class RequestDecoder:
    """Reads requests with their headers.

    find(key, version) -> (api, version, reader, whether the header is flexible), or None for a request that
    `unserved(key, version, correlation id)` turns into a call. Both may raise.
    make_call(api, version, correlation id, client id, request) creates the result; refuse(call, InvalidRequestError)
    raises the error for a request that was read but must be refused.
    """

    def __init__(
        self,
        find: Callable[[int, int], Any],
        unserved: Callable[[int, int, int], Any],
        make_call: Callable[..., Any],
        refuse: Callable[[Any, InvalidRequestError], NoReturn],
        names: Callable[[bytes], str | None],
    ) -> None:
        self._find = find
        self._unserved = unserved
        self._make_call = make_call
        self._refuse = refuse
        self._names = names
        self._plans: dict[tuple[int, int], Any] = {}

    def decode(self, frame: memoryview, limit: int = NO_LIMIT) -> Any:
        """Decode the call in a frame (without its length). Records are views of the frame.

        limit: units of work (`bounds.py`) after which LargeMessageError is raised: then decode it in a worker thread,
        without the limit, where the GIL is released regularly.

        Raises MalformedError, and the errors of `find`, `unserved` and `refuse`.
        """
        try:
            key, version, correlation_id = _HEADER.unpack_from(frame)
        except error:
            raise MalformedError(f"a frame of {len(frame)} bytes holds no request header") from None
        plan = self._plans.get((key, version))
        if plan is None:
            plan = self._find(key, version)
            if plan is None:
                return self._unserved(key, version, correlation_id)
            self._plans[key, version] = plan
        api, version, message, is_flexible = plan
        reader = (FlexibleReader if is_flexible else Reader)(frame, _HEADER.size, self._names, limit)
        try:
            client_id = reader.classic_string() or ""
            reader.tags()
            request = message.run(reader)
        except InvalidRequestError as problem:
            self._refuse(self._make_call(api, version, correlation_id, client_id, problem.request), problem)
        except (MalformedError, UnicodeDecodeError) as problem:
            raise MalformedError(f"no {api.name} request of version {version}: {problem}") from None
        return self._make_call(api, version, correlation_id, client_id, request)


class ReplyEncoder:
    """Writes replies with their headers.

    find(api, version) -> (writer, whether the header is flexible). A response of `failure_type` is converted by
    api.failed(request, response). Text that is too long is truncated; only messages that quote the request can be too
    long.
    """

    def __init__(self, find: Callable[[Any, int], Any], failure_type: type) -> None:
        self._find = find
        self._failure_type = failure_type
        self._plans: dict[tuple[int, int], Any] = {}

    def encode(
        self, call: Any, response: Any, throttle_ms: int = 0, limit: int = NO_LIMIT, max_bytes: int = NO_LIMIT
    ) -> list[Sized]:
        """Encode the whole reply frame in order: bytes, plus a fetch's `records` objects unchanged.

        limit: as in `RequestDecoder.decode`. max_bytes: limit of the size without the records. Raises UnwritableError,
        ReplyTooLargeError.
        """
        api, version = call.api, call.version
        plan = self._plans.get((api.key, version))
        if plan is None:
            plan = self._plans[api.key, version] = self._find(api, version)
        message, is_flexible = plan
        if type(response) is self._failure_type:
            response = api.failed(call.request, response)
        start = _REPLY_START.pack(0, call.correlation_id) + (b"\0" if is_flexible else b"")
        writer = (FlexibleWriter if message.plan.flexible else Writer)(
            start, throttle_ms, limit, max_bytes, cuts_text=True
        )
        message.run(writer, response, call.request)
        return writer.finish_frame()
