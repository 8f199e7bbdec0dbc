"""Echo servers to compare small requests with. They only send each byte back.

    python -m benchmarks.servers.echo           a task per connection, as trio's documentation teaches
    python -m benchmarks.servers.echo turns     one loop that serves every ready socket, as the broker does

Run as a process, either prints `ready native=HOST:PORT` and serves until it is ended.
"""

import select
import socket
import sys
from functools import partial
from typing import NoReturn

import trio

RECEIVE_BYTES = 1 << 16


async def echo(stream: trio.SocketStream) -> None:
    """Send back received bytes until the other end closes or breaks."""
    try:
        async for data in stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass


def serve_by_turns() -> NoReturn:
    """Serve on a free port of the loopback interface, with all connections in one loop."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener, select.epoll() as poll:
        host, port = listener.getsockname()
        poll.register(listener, select.EPOLLIN)
        print(f"ready native={host}:{port}", flush=True)
        connections: dict[int, socket.socket] = {}
        while True:
            for fd, _ in poll.poll():
                connection = connections.get(fd)
                if connection is None:
                    connection, _ = listener.accept()
                    connections[connection.fileno()] = connection
                    poll.register(connection, select.EPOLLIN)
                elif not send_back(connection):
                    connections.pop(fd).close()


def send_back(connection: socket.socket) -> bool:
    """Send back received bytes; return False once the other end has closed or broken."""
    try:
        data = connection.recv(RECEIVE_BYTES)
        connection.sendall(data)
    except ConnectionError:
        return False
    return bool(data)


async def serve_by_tasks() -> None:
    """Serve on a free port of the loopback interface, with a task for each connection."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, echo, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        host, port = listener.socket.getsockname()
        print(f"ready native={host}:{port}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["turns"]:
        serve_by_turns()
    else:
        trio.run(serve_by_tasks)
