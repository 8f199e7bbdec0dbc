"""ACLs are created and deleted from any broker, and every broker's image has them."""

import pytest
import trio
from trio.testing import MockClock

from tests.broker.cluster.nodes import three_nodes
from tests.broker.cluster.stores import Contents
from warmlog.broker.cluster.access.acls import create_acls, delete_acls
from warmlog.broker.cluster.keys import acl_id, acl_key
from warmlog.broker.cluster.store import Changes, KeyValue, StoreMismatchError
from warmlog.broker.security.acls import Acl, Operation, PatternType, Permission, ResourceType


def acl(name: str) -> Acl:
    return Acl(ResourceType.TOPIC, name, PatternType.LITERAL, "User:a", "*", Operation.READ, Permission.ALLOW)


async def test_two_brokers_that_create_the_same_acls_create_them_once(autojump_clock: MockClock) -> None:
    acls = [acl(f"t{number}") for number in range(300)]
    async with three_nodes() as nodes:
        async with trio.open_nursery() as nursery:
            for each in nodes[:2]:
                nursery.start_soon(create_acls, each.node, acls)
        for each in nodes:
            await each.until(lambda each=each: len(each.node.image.acls) == 300)  # type: ignore[misc]
            assert {found for _, found in each.node.image.acls.items()} == set(acls)
        await create_acls(nodes[2].node, acls)
        await delete_acls(nodes[2].node, [acl_id(each) for each in [*acls[:200], acl("unknown")]])
        for each in nodes:
            await each.until(lambda each=each: len(each.node.image.acls) == 100)  # type: ignore[misc]
        async with trio.open_nursery() as nursery:
            for each in nodes:
                nursery.start_soon(delete_acls, each.node, [acl_id(each) for each in acls])
        assert len(nodes[0].node.image.acls) == 0


def test_an_acl_of_a_later_version_is_not_ignored() -> None:
    image = Contents().image
    value = b'{"resource_type":2,"name":"t","pattern":3,"principal":"User:a","host":"*","operation":99,"permission":2}'
    with pytest.raises(StoreMismatchError, match="acls/"):
        image.apply(Changes(9, (KeyValue(acl_key(acl_id(acl("t"))), value, 9, 9),)))


def test_different_acls_have_different_ids() -> None:
    kinds = (ResourceType.TOPIC, ResourceType.GROUP)
    acls = {
        Acl(kind, name, pattern, principal, host, operation, permission)
        for kind in kinds
        for name in ("a", "b")
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
        for principal in ("User:a", "User:b")
        for host in ("*", "h")
        for operation in (Operation.READ, Operation.WRITE)
        for permission in (Permission.ALLOW, Permission.DENY)
    }
    assert len({acl_id(each) for each in acls}) == len(acls) == 128
