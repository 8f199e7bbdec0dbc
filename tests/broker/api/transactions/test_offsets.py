"""Offsets that are committed within a transaction, as clients of the Kafka listener see them."""

from pathlib import Path

import pytest

from tests.broker.api.transactions.asking import commit_offset, committed_offset, create, describe, end, started, until
from tests.broker.clients import running
from tests.broker.kafka_client import kafka_client
from warmlog.protocol.errors import ErrorCode

UNSTABLE = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
NONE_YET = (ErrorCode.NONE, -1)


@pytest.mark.parametrize("commits", [True, False])
async def test_an_offset_is_unstable_until_its_transaction_ends(tmp_path: Path, commits: bool) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        assert await commit_offset(client, producer) is ErrorCode.NONE
        assert await committed_offset(client, stable=True) == UNSTABLE
        assert await committed_offset(client, stable=False) == NONE_YET
        assert await end(client, producer, commits=commits) is ErrorCode.NONE
        await until(client, "CompleteCommit" if commits else "CompleteAbort")
        assert await committed_offset(client, stable=True) == ((ErrorCode.NONE, 7) if commits else NONE_YET)
        broker.stop.set()


async def test_a_pending_offset_is_known_after_a_restart_and_committed_there(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        assert await commit_offset(client, producer) is ErrorCode.NONE
        broker.stop.set()
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await committed_offset(client, stable=True) == UNSTABLE
        assert await committed_offset(client, stable=False) == NONE_YET
        while (error := await end(client, producer)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            pass
        assert error is ErrorCode.NONE
        await until(client, "CompleteCommit")
        assert await committed_offset(client, stable=True) == (ErrorCode.NONE, 7)
        broker.stop.set()


@pytest.mark.parametrize(
    ("version", "error"), [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE), (5, ErrorCode.NONE)]
)
async def test_only_new_clients_need_not_add_a_group_beforehand(tmp_path: Path, version: int, error: ErrorCode) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        assert await commit_offset(client, producer, version) is error
        assert await committed_offset(client, stable=True) == (UNSTABLE if error is ErrorCode.NONE else NONE_YET)
        broker.stop.set()


async def test_a_member_of_another_generation_commits_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        error = await commit_offset(client, producer, generation_id_or_member_epoch=3, member_id="gone")
        assert error is ErrorCode.ILLEGAL_GENERATION
        assert await committed_offset(client, stable=True) == NONE_YET
        broker.stop.set()


async def test_topics_are_named_by_their_ids(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        found = await client.ask("Metadata", topics=[{"name": "words"}])
        offset = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
        ids = (found["topics"][0]["topic_id"], b"unknown topic id")
        named = [{"topic_id": topic_id, "partitions": [offset]} for topic_id in ids]
        member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        reply = await client.ask("TxnOffsetCommit", 6, **producer, group_id="readers", topics=named, **member)
        errors = [(topic["topic_id"], topic["partitions"][0]["error_code"]) for topic in reply["topics"]]
        assert errors == [(ids[0], ErrorCode.NONE), (ids[1], ErrorCode.UNKNOWN_TOPIC_ID)]
        assert await committed_offset(client, stable=True) == UNSTABLE
        gone = member | {"generation_id_or_member_epoch": 3, "member_id": "gone"}
        reply = await client.ask("TxnOffsetCommit", 6, **producer, group_id="others", topics=named[:1], **gone)
        assert reply["topics"][0]["partitions"][0]["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        broker.stop.set()


async def test_more_pending_offsets_than_the_limit_are_refused(tmp_path: Path) -> None:
    settings = {"warmlog.transaction.partitions.max": 1, "offsets.topic.num.partitions": 1}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        errors = [await commit_offset(client, producer, group_id=f"readers-{number}") for number in range(51)]
        assert errors == [ErrorCode.NONE] * 50 + [ErrorCode.POLICY_VIOLATION]
        assert await end(client, producer) is ErrorCode.NONE
        await until(client, "CompleteCommit")
        assert await commit_offset(client, producer, group_id="readers-51") is ErrorCode.NONE
        broker.stop.set()


async def test_a_fenced_producer_commits_no_offsets(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        zombie = await started(client)
        await started(client)
        assert await commit_offset(client, zombie) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await committed_offset(client, stable=True) == NONE_YET
        broker.stop.set()


async def test_an_offset_of_a_missing_partition_neither_fails_as_its_producer_nor_opens_a_transaction(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        offset = {"committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
        missing = {"name": "words", "partitions": [{"partition_index": 1, **offset}]}
        for sender in (producer, {**producer, "producer_epoch": 99}):
            error = await commit_offset(client, sender, topics=[missing])
            assert error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await describe(client))["transaction_state"] == "Empty"
        both = [{"name": "words", "partitions": [{"partition_index": index, **offset} for index in (1, 0)]}]
        zombie = {**producer, "producer_epoch": 99}
        member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        reply = await client.ask("TxnOffsetCommit", 5, **zombie, group_id="readers", topics=both, **member)
        errors = [one["error_code"] for one in reply["topics"][0]["partitions"]]
        assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH]
        broker.stop.set()
