"""Quotas are changed from any broker, and every broker's image has them."""

import pytest
import trio
from trio.testing import MockClock

from tests.broker.cluster.nodes import three_nodes
from tests.broker.cluster.stores import Contents
from warmlog.broker.cluster.access.quotas import change_quotas
from warmlog.broker.cluster.store import Changes, KeyValue, StoreMismatchError
from warmlog.broker.security.quotas.entities import QuotaEntity


async def test_brokers_that_change_quotas_of_an_entity_at_once_lose_no_change(autojump_clock: MockClock) -> None:
    alice = QuotaEntity("alice", "a/b=c")
    kinds = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
    async with three_nodes() as nodes:
        async with trio.open_nursery() as nursery:
            for each, kind in zip(nodes, kinds, strict=True):
                nursery.start_soon(change_quotas, each.node, [(alice, {kind: 5.0})])
        for each in nodes:
            await each.until(lambda each=each: len(each.node.image.quotas.of(alice)) == 3)  # type: ignore[misc]
        await change_quotas(nodes[0].node, [(alice, dict.fromkeys(kinds)), (QuotaEntity("bob"), {kinds[0]: 1.0})])
        for each in nodes:
            await each.until(lambda each=each: not each.node.image.quotas.of(alice))  # type: ignore[misc]
            assert dict(each.node.image.quotas.items()) == {QuotaEntity("bob"): {kinds[0]: 1.0}}


async def test_more_entities_are_changed_than_fit_into_one_transaction(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        changes = [(QuotaEntity(None, f"c{number}"), {"producer_byte_rate": 1.0}) for number in range(300)]
        await change_quotas(nodes[0].node, changes)
        await nodes[1].until(lambda: len(nodes[1].node.image.quotas) == 300)


def test_quotas_of_a_later_version_are_not_ignored() -> None:
    image = Contents().image
    with pytest.raises(StoreMismatchError, match="quotas/planet"):
        image.apply(Changes(9, (KeyValue("quotas/planet=mars", b'{"values":{"producer_byte_rate":1.0}}', 9, 9),)))
