"""Attempts to commit that got no answer, and take effect later than the attempts that follow them."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from tests.broker.cluster.memory import MemoryStore
from tests.broker.cluster.nodes import Member, three_nodes, topic
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.access.acls import create_acls, delete_acls
from warmlog.broker.cluster.keys import acl_id, attempts_key
from warmlog.broker.cluster.store import Outcome, StoreTransaction, StoreUnavailableError
from warmlog.broker.metadata.topic import RefusedError
from warmlog.broker.security.acls import Acl, Operation, PatternType, Permission, ResourceType

ACL = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:a", "*", Operation.READ, Permission.DENY)


class LateStore(MemoryStore):
    """Gives no answer to the first transactions that match, and keeps them."""

    def __init__(self, member: Member, matches: Callable[[StoreTransaction], bool], count: int = 1) -> None:
        super().__init__(member.cluster)
        self._matches = matches
        self._count = count
        self.late: list[StoreTransaction] = []
        member.node._store = self  # in place of its own

    async def commit(self, transaction: StoreTransaction) -> Outcome:
        """Commit, or keep a transaction."""
        if len(self.late) < self._count and self._matches(transaction):
            self.late.append(transaction)
            raise StoreUnavailableError("no answer")
        return await super().commit(transaction)

    async def take_effect(self) -> list[bool]:
        """Let the store handle what was kept; return which were committed."""
        return [(await super(LateStore, self).commit(each)).succeeded for each in self.late]


def _writes(prefix: str) -> Callable[[StoreTransaction], bool]:
    return lambda transaction: any(each.key.startswith(prefix) for each in transaction.operations)


async def test_a_deleted_topic_does_not_come_back(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        node, store = nodes[0].node, LateStore(nodes[0], _writes("topics/"))
        await admin.create_topic(node, "t", topic(1), [[1, 2]])
        await admin.delete_topic(node, "t")
        assert await store.take_effect() == [False]
        assert await store.range("topics/") == (nodes[0].cluster.revision, ())


async def test_a_topic_whose_creation_takes_effect_before_the_next_attempt_is_created_once(
    autojump_clock: MockClock,
) -> None:
    async with three_nodes() as nodes:
        node, store = nodes[0].node, LateStore(nodes[0], _writes("topics/"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(admin.create_topic, node, "t", topic(1), [[1, 2]])
            while not store.late:
                await trio.lowlevel.checkpoint()
            assert await store.take_effect() == [True]
        assert node.image.topics["t"].id == topic(1).id


async def test_a_topic_that_others_have_deleted_is_not_created_again(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        store = LateStore(nodes[0], _writes("topics/"))
        with pytest.raises(ExceptionGroup) as raised:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(admin.create_topic, nodes[0].node, "t", topic(1), [[1, 2]])
                while not store.late:
                    await trio.lowlevel.checkpoint()
                assert await store.take_effect() == [True]
                await nodes[1].until(lambda: "t" in nodes[1].node.image.topics)
                await admin.delete_topic(nodes[1].node, "t")
        assert raised.group_contains(RefusedError, match="'t' was deleted while it was being created")


async def test_acls_do_not_come_back_and_are_not_deleted_again(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        node, store = nodes[0].node, LateStore(nodes[0], _writes("acls/"))
        await create_acls(node, [ACL])
        await delete_acls(node, [acl_id(ACL)])
        assert await store.take_effect() == [False]
        await create_acls(node, [ACL])
        store = LateStore(nodes[0], _writes("acls/"))
        await delete_acls(node, [acl_id(ACL)])
        await create_acls(node, [ACL])
        assert await store.take_effect() == [False]
        assert ACL in node.image.acls


async def test_many_attempts_are_ended_at_once(autojump_clock: MockClock) -> None:
    async with three_nodes() as nodes:
        node, store = nodes[0].node, LateStore(nodes[0], _writes("acls/"), count=50)
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(create_acls, node, [ACL._replace(name=f"t{number}")])
        assert len(node.image.acls) == 50
        assert await store.take_effect() == [False] * 50
        (key,) = (await store.range(attempts_key(1))).items
        assert key.create_revision == key.mod_revision, "written once"
