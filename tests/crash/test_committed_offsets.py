"""A broker that is killed while groups commit: what was acknowledged does not go back."""

import signal
import subprocess
from pathlib import Path
from random import Random

import pytest
import trio

from tests.broker.clients import RawClient
from tests.crash.test_kill import broker_process
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetToCommit,
    PartitionEntry,
)
from warmlog.protocol.request import CreateTopicsRequest, HelloRequest, NewTopic

GROUPS = ("g", "h")


async def connect(address: str) -> RawClient:
    host, port = address.rsplit(":", 1)
    client = RawClient(await trio.open_tcp_stream(host, int(port)))
    await client.ask(HelloRequest(versions=(2,)))
    return client


def commit_request(group: str, offset: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(group=group, partitions=(OffsetToCommit(topic="orders", partition=0, offset=offset),))


async def commit_until_killed(
    process: subprocess.Popen[str], client: RawClient, first: int, kill_after: int
) -> dict[str, int]:
    """Keep commits of rising offsets in flight; kill the broker after so many replies. The last acknowledged ones."""
    acknowledged: dict[str, int] = {}
    sent = [(group, first + number) for number in range(kill_after + 20) for group in GROUPS]
    await client.send(*(commit_request(group, offset) for group, offset in sent))
    for count, (group, offset) in enumerate(sent):
        if count == kill_after:
            process.send_signal(signal.SIGKILL)
        try:
            reply = await client.reply()
        except trio.BrokenResourceError:
            break
        if reply is None:
            break
        assert reply.partitions[0].error is ErrorCode.NONE, reply
        acknowledged[group] = offset
    return acknowledged


async def committed(client: RawClient, group: str) -> int:
    """The offset, once the coordinator has read what there is."""
    asked = OffsetFetchGroup(group=group, partitions=(PartitionEntry(topic="orders", partition=0),))
    while True:
        (found,) = (await client.ask(OffsetFetchRequest(groups=(asked,)))).groups
        if found.error is ErrorCode.NONE:
            return int(found.partitions[0].offset)
        assert found.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("seed", [1])
async def test_committed_offsets_do_not_go_back_when_the_broker_is_killed(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    acknowledged: dict[str, int] = {}
    for life in range(3):
        with broker_process(tmp_path) as (process, address):
            client = await connect(address)
            await client.ask(CreateTopicsRequest(topics=(NewTopic(name="orders"),)))
            for group, offset in acknowledged.items():
                assert await committed(client, group) >= offset
            acknowledged = await commit_until_killed(process, client, 1000 * life + 1, random.randrange(10, 150))
            await client.stream.aclose()
        assert acknowledged
