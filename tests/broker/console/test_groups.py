"""Groups: lag, and whether the next read is in memory."""

from pathlib import Path

from tests.broker.clients import RawClient, batch
from tests.broker.console.web import allow, console, console_with_users, produce
from tests.broker.log.io.eviction import evict_files, needs_eviction
from warmlog.protocol.groups import OffsetCommitRequest, OffsetToCommit

TOPIC, GROUP = 2, 3
DESCRIBE = 8


async def commit(client: RawClient, group: str, topic: str, offset: int) -> None:
    place = OffsetToCommit(topic=topic, partition=0, offset=offset)
    reply = await client.ask(OffsetCommitRequest(group=group, partitions=(place,)))
    assert not reply.partitions[0].error, reply


async def test_groups_are_filtered_and_described_with_their_lag(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("words")
        await produce(client, "words", b"a", b"b", b"c")
        for group, offset in (("readers", 1), ("done", 3), ("a group/ü", 0)):
            await commit(client, group, "words", offset)
        listed = await site.get("groups")
        assert [each["group"] for each in listed["groups"]] == ["a group/ü", "done", "readers"]
        assert {(each["type"], each["state"]) for each in listed["groups"]} == {("classic", "Empty")}
        assert (await site.get("groups?filter=read"))["total"] == 1
        found = await site.get("groups/readers")
        (position,) = found["positions"]
        assert (found["lag"], position["lag"], position["offset"], position["high_watermark"]) == (2, 2, 1, 3)
        assert position["next_read"] == "memory"
        assert (await site.get("groups/done"))["positions"][0]["next_read"] == "end"
        assert (await site.get("groups/a%20group%2F%C3%BC"))["lag"] == 3
        assert (await site.error("groups/missing"))[0] == 404


async def test_the_next_read_of_a_lagging_group_is_from_the_disk_where_its_pages_are_evicted(tmp_path: Path) -> None:
    needs_eviction(tmp_path)
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("old", **{"segment.bytes": "400000"})
        for _ in range(100):
            await client.produce("old", batch(b"o" * 9000))
        await commit(client, "lagging", "old", 5)
        await commit(client, "tailing", "old", 99)
        evict_files(tmp_path / "data" / "old-0", f"{0:020}.*")
        lagging = (await site.get("groups/lagging"))["positions"][0]
        assert lagging["next_read"] == "disk"
        assert (await site.get("groups/tailing"))["positions"][0]["next_read"] == "memory"
        assert (await site.get("groups/lagging"))["positions"][0] == lagging  # the question reads nothing


async def test_groups_that_may_not_be_described_are_not_shown(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "alice") as site:
        client, alice = await site.broker.connect(), site.by("alice")
        await client.create("words")
        await produce(client, "words", b"a")
        for group in ("mine", "hidden"):
            await commit(client, group, "words", 0)
        assert (await alice.get("groups"))["groups"] == []
        await allow(site, "alice", GROUP, "mine", DESCRIBE)
        assert [each["group"] for each in (await alice.get("groups"))["groups"]] == ["mine"]
        assert (await alice.get("groups/mine"))["positions"] == []  # not its topic
        assert await alice.error("groups/hidden") == (403, "GROUP_AUTHORIZATION_FAILED")
        await allow(site, "alice", TOPIC, "words", DESCRIBE)
        assert (await alice.get("groups/mine"))["lag"] == 1
