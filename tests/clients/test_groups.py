"""Consumer groups of real members: who has which partition as they join, leave and die, and that nothing is lost."""

from collections.abc import Iterator

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.clients.conftest import NewTopicFactory
from tests.clients.libraries import LIBRARIES, Confluent, Library, Row
from tests.clients.members import Members

PARTITIONS = range(6)
WRITER = Confluent()


@pytest.fixture
def topic(new_topic: NewTopicFactory) -> str:
    return new_topic(partitions=len(PARTITIONS))


@pytest.fixture
def members(bootstrap: str, name: str, topic: str) -> Iterator[Members]:
    with Members(bootstrap, name, topic) as members:
        yield members


def write(bootstrap: str, topic: str, count: int) -> set[tuple[int, int]]:
    """So many records in each partition; returns their places."""
    rows = [Row(1_700_000_000_000 + i, None, b"%d" % i) for i in range(count)]
    offsets = WRITER.produce(bootstrap, topic, dict.fromkeys(PARTITIONS, rows))
    return {(partition, offset) for partition, given in offsets.items() for offset in given}


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    """The committed offsets of a group by partition."""
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {each.partition: each.offset for each in future.result().topic_partitions}


def test_three_members_join_one_leaves_one_dies(
    bootstrap: str, admin: AdminClient, name: str, topic: str, members: Members, library: Library
) -> None:
    """The story of a group. Its members are told by one another's coming and going, and every record is read."""
    written = write(bootstrap, topic, 5)
    first = members.join(library.name)
    members.until_shared(PARTITIONS, [first])
    second, third = members.join(library.name), members.join(library.name)
    members.until_shared(PARTITIONS, [first, second, third])
    written |= write(bootstrap, topic, 5)
    members.until(lambda: members.read() >= written, "all records")
    second.leave()
    members.until_shared(PARTITIONS, [first, third])
    third.kill()
    members.until_shared(PARTITIONS, [first])
    written |= write(bootstrap, topic, 5)
    members.until(lambda: members.read() == written, "the records after the last change")
    first.leave()
    assert committed(admin, name) == dict.fromkeys(PARTITIONS, 15)


def test_members_of_three_libraries_share_a_topic(bootstrap: str, topic: str, members: Members) -> None:
    joined = [members.join(each.name) for each in LIBRARIES]
    members.until_shared(PARTITIONS, joined)
    written = write(bootstrap, topic, 3)
    members.until(lambda: members.read() == written, "all records")


def test_a_member_that_comes_back_goes_on_where_it_was(
    bootstrap: str, topic: str, members: Members, library: Library
) -> None:
    before = write(bootstrap, topic, 4)
    first = members.join(library.name)
    members.until(lambda: set(first.read) == before, "the records before")
    first.leave()
    after = write(bootstrap, topic, 4) - before
    second = members.join(library.name)
    members.until(lambda: len(second.read) >= len(after), "the records after")
    assert set(second.read) == after


def test_a_static_member_is_replaced_without_a_rebalance(
    bootstrap: str, topic: str, members: Members, library: Library
) -> None:
    """A process with the same group.instance.id gets what the dead one had; the other member is not disturbed."""
    first, second = (members.join(library.name, instance) for instance in ("one", "two"))
    members.until_shared(PARTITIONS, [first, second])
    had, undisturbed = second.assigned, list(first.assignments)
    second.kill()
    again = members.join(library.name, "two")
    members.until(lambda: bool(again.assigned), "the partitions of the dead member")
    assert again.assigned == had
    written = write(bootstrap, topic, 2)
    members.until(lambda: members.read() >= written, "records in all partitions")
    assert first.assignments == undisturbed


def test_the_coordinator_tells_who_is_a_member(
    admin: AdminClient, name: str, topic: str, members: Members, library: Library
) -> None:
    joined = [members.join(library.name) for _ in range(2)]
    members.until_shared(PARTITIONS, joined)
    described = admin.describe_consumer_groups([name])[name].result()
    assert described.state.name == "STABLE"
    assert described.partition_assignor == "range"
    assignments = [
        sorted(each.partition for each in member.assignment.topic_partitions) for member in described.members
    ]
    assert sorted(assignments) == sorted(each.assigned or [] for each in joined)
    assert {each.topic for member in described.members for each in member.assignment.topic_partitions} == {topic}
    assert all(member.client_id and member.host.strip("/") == "127.0.0.1" for member in described.members)
    for each in joined:
        each.leave()
    assert admin.describe_consumer_groups([name])[name].result().state.name == "EMPTY"


def test_a_group_is_listed_until_it_is_deleted(
    bootstrap: str, admin: AdminClient, name: str, topic: str, members: Members
) -> None:
    written = write(bootstrap, topic, 1)
    member = members.join("confluent")
    members.until(lambda: members.read() == written, "all records")

    def listed() -> bool:
        return name in {each.group_id for each in admin.list_consumer_groups().result().valid}

    assert listed()
    refused = admin.delete_consumer_groups([name])[name].exception()
    assert refused is not None
    assert refused.args[0].name() == "NON_EMPTY_GROUP"
    member.leave()
    admin.delete_consumer_groups([name])[name].result()
    assert not listed()
    assert committed(admin, name) == {}
