"""TLS over a non-blocking socket, in user space.

    socket -> recv -> whole records -> (OpenSSL) -> recv's result        send -> (OpenSSL) -> records -> socket

OpenSSL gets only whole records, from memory, and few at a time. With the socket itself, it would process records
without data, such as key updates, as long as a peer sends them: 12 to 30 us each, without returning.

Invariants:
1. `recv` decrypts everything received; at most a part of one record is left.
2. A step of `recv` or `send` decrypts or encrypts `STEP_BYTES`, 0.1 ms.
3. A peer that sends many records without data, or does not read OpenSSL's answers, is disconnected.
"""

import socket
import ssl
from contextlib import suppress
from typing import Final, NoReturn

from warmlog.broker.net.transport.transport import shutdown

RAW_BYTES: Final = 32 << 10  # bytes per system call: two full records
STEP_BYTES: Final = 64 << 10
SEND_BYTES: Final = 256 << 10  # bytes accepted by one `send`
HEADER_SIZE: Final = 5
MAX_RECORD_BYTES: Final = (16 << 10) + 256  # without the header
RECORDS_PER_STEP: Final = 32
MAX_EMPTY_RECORDS: Final = 16  # records without data in one step
MAX_ANSWER_BYTES: Final = 16 << 10  # answers that the peer has not read
MAX_HANDSHAKE_BYTES: Final = 128 << 10  # a certificate chain has 10 KiB
RECORD_TYPES: Final = frozenset({20, 21, 22, 23})


class NotTlsError(OSError):
    """The peer does not speak TLS, or violates its rules."""


class TlsTransport:
    """One connection. A thread calls `shake` until it returns True; then the event loop uses the other methods."""

    is_plain = False

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = sock
        self.fd = sock.fileno()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw = b""  # received but not decrypted
        self._unsent = memoryview(b"")  # encrypted but not accepted by the socket
        self._count = 0  # records found by `_end_of_records`
        self._shaken = 0  # bytes of the handshake
        self._has_ended = False

    @property
    def unsent_bytes(self) -> int:
        """The number of encrypted bytes that the socket has not accepted."""
        return len(self._unsent)

    @property
    def received_bytes(self) -> int:
        """The number of bytes of an incomplete record."""
        return len(self._raw)

    # -- the handshake --

    def certificate(self) -> bytes | None:
        """Return the client's certificate in DER, if it presented one; the handshake has verified it."""
        return self._tls.getpeercert(binary_form=True)

    def shake(self) -> bool:
        """Continue the handshake; return whether it is complete. `flush` until nothing is unsent. Raises OSError."""
        try:
            raw = self._sock.recv(RAW_BYTES)
        except BlockingIOError:
            return False
        if not raw:
            raise ConnectionResetError("the client closed the connection during the handshake")
        self._raw += raw
        self._shaken += len(raw)
        if self._shaken > MAX_HANDSHAKE_BYTES:
            raise NotTlsError("its handshake is too long")
        return self._shake_records()

    def _shake_records(self) -> bool:
        """Pass received records to OpenSSL one by one, because data may follow the handshake."""
        try:
            while end := self._end_of_records(1):
                self._feed(end)
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                return True
        finally:
            self._take_encrypted()  # the answer may be an alert
            with suppress(OSError):
                self.flush()
        return False

    # -- receive --

    def recv(self, size: int, /) -> bytes:  # noqa: ARG002  # a record is decrypted as a whole
        """Return received data, none at the end of the stream. Raises BlockingIOError, OSError."""
        if self._has_ended:
            return b""
        raw = self._sock.recv(RAW_BYTES)
        if not raw:
            self._has_ended = True
            return b""
        self._raw = self._raw + raw if self._raw else raw
        return self.received() or self._nothing()

    def recv_into(self, buffer: memoryview, /) -> int:
        """Raise an error: only a plain transport supports this."""
        raise NotImplementedError

    def received(self) -> bytes:
        """Decrypt all complete records. Raises OSError."""
        pieces: list[bytes] = []
        while not self._has_ended and (end := self._end_of_records(RECORDS_PER_STEP)):
            count = self._feed(end)
            before = len(pieces)
            self._decrypt(pieces, count)
            if count - (len(pieces) - before) > MAX_EMPTY_RECORDS:
                raise NotTlsError("it sends TLS records without data")
            if self._outgoing.pending:
                self._take_encrypted()
                self.flush()
                if len(self._unsent) > SEND_BYTES + MAX_ANSWER_BYTES:
                    raise NotTlsError("it does not read what TLS answers")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _decrypt(self, pieces: list[bytes], records: int) -> None:
        """Append the data of OpenSSL's pending records."""
        read = self._tls.read
        try:
            for _ in range(records):
                data = read(MAX_RECORD_BYTES)
                if not data:
                    self._has_ended = True
                    return
                pieces.append(data)
        except ssl.SSLWantReadError:
            return
        except ssl.SSLZeroReturnError:
            self._has_ended = True

    def _nothing(self) -> bytes:
        """Return b"" at the end of the stream, else raise BlockingIOError."""
        if self._has_ended:
            return b""
        raise BlockingIOError

    def _end_of_records(self, limit: int) -> int:
        """Return where the last complete record ends, of a limited number of received ones; 0 if there is none."""
        raw, end = self._raw, 0
        self._count = 0
        while self._count < limit and len(raw) - end >= HEADER_SIZE:
            length = int.from_bytes(raw[end + 3 : end + HEADER_SIZE], "big")
            if raw[end] not in RECORD_TYPES or raw[end + 1] != 3 or length > MAX_RECORD_BYTES:
                self._refuse()
            if len(raw) - end - HEADER_SIZE < length:
                break
            end += HEADER_SIZE + length
            self._count += 1
        return end

    def _refuse(self) -> NoReturn:
        raise NotTlsError("it does not speak TLS")

    def _feed(self, end: int) -> int:
        """Pass received records to OpenSSL; return their number."""
        self._incoming.write(self._raw[:end])
        self._raw = self._raw[end:]
        return self._count

    # -- send --

    def send(self, data: bytes | memoryview, flags: int = 0, /) -> int:  # noqa: ARG002
        """Encrypt and send; return how many bytes were accepted. Raises BlockingIOError, OSError."""
        if not self.flush():
            raise BlockingIOError
        view, accepted = memoryview(data), 0
        limit = min(len(view), SEND_BYTES)
        while accepted < limit:
            accepted += self._tls.write(view[accepted : min(limit, accepted + STEP_BYTES)])
            self._take_encrypted()
            if not self.flush():
                break
        return accepted

    def flush(self) -> bool:
        """Send encrypted bytes; return whether none are left. Raises OSError."""
        unsent = self._unsent
        if not unsent:
            return True
        try:
            sent = self._sock.send(unsent)
        except BlockingIOError:
            return False
        self._unsent = unsent[sent:]
        return sent == len(unsent)

    def _take_encrypted(self) -> None:
        if self._outgoing.pending:
            data = self._outgoing.read()
            self._unsent = memoryview(bytes(self._unsent) + data if self._unsent else data)

    # -- the end --

    def shutdown(self, how: int) -> None:
        """End the stream in one direction, or both; does nothing on a disconnected socket."""
        if how != socket.SHUT_RD:
            self._say_goodbye()
        shutdown(self._sock, how)

    def close(self) -> None:
        """Send a close_notify alert and close the socket."""
        self._say_goodbye()
        self._sock.close()

    def _say_goodbye(self) -> None:
        """Send close_notify if it fits into the socket, so that the peer knows that the stream is complete."""
        with suppress(OSError, ValueError):
            self._take_encrypted()  # an alert about an error
            if self.flush():
                with suppress(ssl.SSLWantReadError):
                    self._tls.unwrap()
                self._take_encrypted()
                self.flush()
