import trio

from broker.metrics import Metrics
from broker.writer import ALONE, Writer


async def test_a_client_is_alone_once_it_has_come_often_enough_and_until_another_one_comes() -> None:
    async with trio.open_nursery() as nursery:
        writer = Writer(nursery=nursery, metrics=Metrics(), loop_write_max_bytes=1)
        one, other = object(), object()
        assert not writer.is_alone(one)
        for _ in range(ALONE):
            writer.is_shared(one)
            assert not writer.is_alone(one)
        writer.is_shared(one)
        assert writer.is_alone(one)
        assert not writer.is_alone(other)
        writer.is_shared(other)
        assert not writer.is_alone(one)
        assert not writer.is_alone(other)
