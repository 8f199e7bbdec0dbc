"""Changes: by whom, confirmed, and as Kafka's own requests make them."""

from pathlib import Path

from tests.broker.console.test_groups import commit
from tests.broker.console.web import allow, console_with_users, produce

TOPIC, GROUP, CLUSTER = 2, 3, 4
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, ALTER_CONFIGS = 3, 4, 5, 6, 7, 8, 11


async def test_a_topic_is_created_changed_and_deleted(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "admin") as site:
        admin = site.by("admin")
        reply = await admin.post("topics", {"name": "new", "partitions": 2, "configs": {"retention.ms": "1000"}})
        assert reply.json == {"done": "created topic new with 2 partitions"}
        assert (await admin.post("topics", {"name": "new"})).status == 409
        assert (await admin.post("topics/new/alter", {"partitions": 3})).status == 200
        assert (await admin.post("topics/new/alter", {"configs": {"retention.ms": "2000"}})).status == 200
        assert (await admin.post("topics/new/alter", {"configs": {"retention.ms": "x"}})).json[
            "error"
        ] == "INVALID_CONFIG"
        found = await admin.get("topics/new")
        assert found["total"] == 3
        assert {"name": "retention.ms", "value": "2000", "source": "topic"} in found["configs"]
        for body in ({"confirm": "old"}, {"confirm": ""}, {}):
            assert (await admin.post("topics/new/delete", body)).status == 400
        assert (await admin.get("topics"))["total"] == 1
        assert (await admin.post("topics/new/delete", {"confirm": "new"})).status == 200
        assert (await admin.get("topics"))["total"] == 0


async def test_offsets_of_a_group_without_members_are_set(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "admin") as site:
        client, admin = await site.broker.connect(), site.by("admin")
        await client.create("words")
        await produce(client, "words", b"a", b"b", b"c")
        await commit(client, "readers", "words", 1)
        for to, is_time, expected in (
            ("end", False, 3),
            ("beginning", False, 0),
            ("2", False, 2),
            ("1700000000001", True, 1),
            ("1800000000000", True, 3),
        ):
            reply = await admin.post("groups/readers/reset", {"topic": "words", "to": to, "is_time": is_time})
            assert reply.status == 200, reply.body
            assert (await admin.get("groups/readers"))["positions"][0]["offset"] == expected
        for body, status in (
            ({"topic": "words", "to": "middle"}, 400),
            ({"topic": "other", "to": "end"}, 400),
            ({"topic": "words", "to": "1", "partitions": []}, 400),
            ({"topic": "words", "to": "1", "partitions": list(range(1001))}, 400),
            ({"topic": "words", "to": "1", "partitions": [0, 1]}, 404),
            ({"topic": "words", "to": "4"}, 416),
        ):
            assert (await admin.post("groups/readers/reset", body)).status == status
            assert (await admin.get("groups/readers"))["positions"][0]["offset"] == 3
        assert (await admin.post("groups/readers/delete", {"confirm": "x"})).status == 400
        assert (await admin.post("groups/readers/delete", {"confirm": "readers"})).status == 200
        assert (await admin.get("groups"))["total"] == 0


async def test_elections_and_moves_are_those_of_kafka(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "admin") as site:
        client, admin = await site.broker.connect(), site.by("admin")
        await client.create("words")
        reply = await admin.post("topics/words/partitions/0/elect", {})
        assert reply.status == 200
        assert "no election was needed" in reply.json["done"]
        reply = await admin.post("topics/words/partitions/0/elect", {"unclean": True})
        assert reply.json["error"] == "NOT_CONFIRMED"
        assert (await admin.post("topics/words/partitions/0/move", {"replicas": [1]})).status == 200
        assert (await admin.post("topics/words/partitions/0/move", {"replicas": [9]})).status == 400
        assert (await admin.post("topics/missing/partitions/0/move", {"replicas": [1]})).status == 404


async def test_each_change_needs_its_right(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "alice") as site:
        client, alice = await site.broker.connect(), site.by("alice")
        await client.create("words")
        await produce(client, "words", b"a")
        await commit(client, "readers", "words", 0)
        await allow(site, "alice", TOPIC, "words", DESCRIBE)
        await allow(site, "alice", GROUP, "readers", DESCRIBE)
        tries = [
            ("topics", {"name": "new"}, (TOPIC, "new", CREATE)),
            ("topics/words/alter", {"configs": {"retention.ms": "1"}}, (TOPIC, "words", ALTER_CONFIGS)),
            ("topics/words/alter", {"partitions": 2}, (TOPIC, "words", ALTER)),
            ("groups/readers/reset", {"topic": "words", "to": "1"}, (GROUP, "readers", READ)),
            ("groups/readers/delete", {"confirm": "readers"}, (GROUP, "readers", DELETE)),
            ("topics/words/partitions/0/elect", {}, (CLUSTER, "kafka-cluster", ALTER)),
            ("topics/words/delete", {"confirm": "words"}, (TOPIC, "words", DELETE)),
        ]
        for path, body, _ in tries:
            reply = await alice.post(path, body)
            assert reply.status == 403, (path, reply.body)
            assert reply.json["error"].endswith("AUTHORIZATION_FAILED")
        await allow(site, "alice", TOPIC, "words", READ)
        for path, body, right in tries:
            await allow(site, "alice", *right)
            reply = await alice.post(path, body)
            assert reply.status == 200, (path, reply.body)


async def test_changes_are_in_the_audit_log(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    async with console_with_users(tmp_path, "admin", settings={"warmlog.audit.file": log}) as site:
        await site.by("admin").post("topics", {"name": "new"})
    text = log.read_text()
    assert '"new"' in text
    assert "admin" in text
