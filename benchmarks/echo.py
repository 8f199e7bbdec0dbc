"""The echo server that small requests are measured against: what trio itself allows.

It answers each byte with the same byte and does nothing else, in the way that trio's documentation teaches. Run as a
process: `python -m benchmarks.echo` prints `ready native=HOST:PORT` and serves until it is ended.
"""

from functools import partial

import trio


async def echo(stream: trio.SocketStream) -> None:
    """Send back what comes, until the other end closes or breaks."""
    try:
        async for data in stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass


async def main() -> None:
    """Serve on a free port of the loopback interface."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, echo, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        host, port = listener.socket.getsockname()
        print(f"ready native={host}:{port}", flush=True)


if __name__ == "__main__":
    trio.run(main)
