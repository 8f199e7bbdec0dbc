"""The simulated loop and links do what they say, and the same seed gives the same run."""

from random import Random

import pytest
import trio

from tests.cluster.simulation import loop
from tests.cluster.simulation.network import MACHINE, Network, Socket


async def echo(end: Socket) -> None:
    while data := await end.recv(100):
        await end.send_all(data)


async def talk(random: Random) -> list[str]:
    """Several clients send in turns and note what they see, and when."""
    seen: list[str] = []

    async def client(name: str) -> None:
        MACHINE.set(name)
        stream = await network.open_tcp_stream("server", 1)
        for number in range(5):
            await stream.send_all(f"{name}{number}".encode())
            seen.append(f"{trio.current_time():.9f} {(await stream.recv(100)).decode()}")
            await trio.to_thread.run_sync(random.random)

    async with trio.open_nursery() as outside:
        network = Network(outside, random)
        network.listen("server", 1, echo)
        async with trio.open_nursery() as clients:
            for name in "abcd":
                clients.start_soon(client, name)
        outside.cancel_scope.cancel()
    return seen


def without_offset(seen: list[str]) -> list[str]:
    return [line.split()[1] for line in seen]


def test_the_same_seed_gives_the_same_run() -> None:
    assert loop.run(5, talk) == loop.run(5, talk)


def test_another_seed_gives_another_order() -> None:
    orders = {tuple(without_offset(loop.run(seed, talk))) for seed in range(5)}
    assert len(orders) == 5


async def connected(outside: trio.Nursery, random: Random) -> tuple[Network, Socket]:
    network = Network(outside, random)
    network.listen("server", 1, echo)
    MACHINE.set("client")
    return network, await network.open_tcp_stream("server", 1)


def test_a_cut_link_delivers_after_it_heals() -> None:
    async def main(random: Random) -> bytes:
        async with trio.open_nursery() as outside:
            network, stream = await connected(outside, random)
            network.cut("server", "client")
            await stream.send_all(b"x")
            with trio.move_on_after(60) as waiting:
                await stream.recv(1)
            assert waiting.cancelled_caught
            network.heal()
            data = await stream.recv(1)
            outside.cancel_scope.cancel()
        return data

    assert loop.run(1, main) == b"x"


def test_a_machine_that_stops_resets_and_refuses_connections() -> None:
    async def main(random: Random) -> None:
        async with trio.open_nursery() as outside:
            network, stream = await connected(outside, random)
            network.stop_listening("server")
            with pytest.raises(ConnectionResetError):
                await stream.recv(1)
            with pytest.raises(ConnectionRefusedError):
                await network.open_tcp_stream("server", 1)
            outside.cancel_scope.cancel()

    loop.run(1, main)


def test_a_machine_without_power_says_nothing() -> None:
    async def main(random: Random) -> bool:
        async with trio.open_nursery() as outside:
            network, stream = await connected(outside, random)
            network.stop_listening("server", is_power_cut=True)
            with trio.move_on_after(600) as waiting:
                await stream.send_all(b"x")
                await stream.recv(1)
            outside.cancel_scope.cancel()
        return waiting.cancelled_caught

    assert loop.run(1, main)
