"""The limits of the machine: processes that only run a loop of one system call.

    python -m benchmarks.servers.limits append FILE SECONDS WARMUP  appends standard input in a loop
    python -m benchmarks.servers.limits sync FILE SECONDS WARMUP    also calls fdatasync after each append
    python -m benchmarks.servers.limits sendfile FILE               sends FILE in a loop on every connection

The first two print the bytes, the seconds and the seconds of CPU time.

The system calls release the GIL, so threads send on several connections at the same time.
"""

import os
import socket
import sys
from threading import Thread
from time import perf_counter, process_time

SLICE_BYTES = 1 << 20  # bytes of one sendfile call, and of one fetch from a broker


def append(path: str, seconds: str, warmup: str, *, synced: bool = False) -> None:
    """Append to a new file; bytes written during the warm-up do not count."""
    data = sys.stdin.buffer.read()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    append_for(fd, data, float(warmup), synced=synced)
    used_s = process_time()
    size, elapsed_s = append_for(fd, data, float(seconds), synced=synced)
    print(size, elapsed_s, process_time() - used_s)


def append_for(fd: int, data: bytes, seconds: float, *, synced: bool) -> tuple[int, float]:
    """Append `data` repeatedly for this long; return the bytes written and the seconds taken."""
    size, began_at = 0, perf_counter()
    while (elapsed_s := perf_counter() - began_at) < seconds:
        size += os.write(fd, data)
        if synced:
            os.fdatasync(fd)
    return size, elapsed_s


def sendfile(path: str) -> None:
    """Serve on a free port of the loopback interface, with a thread for each connection."""
    with open(path, "rb") as file, socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        print(f"ready native={host}:{port}", flush=True)
        while True:
            connection, _ = listener.accept()
            Thread(target=send_for_ever, args=(connection, file.fileno()), daemon=True).start()


def send_for_ever(connection: socket.socket, fd: int) -> None:
    """Send slice after slice, restarting from the beginning after the end, until the other end closes."""
    size = os.fstat(fd).st_size
    position = 0
    try:
        while True:
            position += os.sendfile(connection.fileno(), fd, position % size, SLICE_BYTES - position % SLICE_BYTES)
    except OSError:
        connection.close()


if __name__ == "__main__":
    loop, *arguments = sys.argv[1:]
    if loop in {"append", "sync"}:
        append(*arguments, synced=loop == "sync")
    else:
        sendfile(*arguments)
