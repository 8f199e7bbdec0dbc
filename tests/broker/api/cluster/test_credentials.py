"""Users' SCRAM credentials. The verdicts are Kafka's (ScramControlManager, ScramImage)."""

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from tests.broker.clients import Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.sasl import upsertion
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.scram import SCRAM_SHA_256, SCRAM_SHA_512

NONE = {"deletions": (), "upsertions": ()}
ALICE = upsertion("alice", SCRAM_SHA_256)


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


async def alter(client: KafkaClient, **fields: Any) -> dict[str, ErrorCode]:
    reply = await client.ask("AlterUserScramCredentials", **(NONE | fields))
    return {each["user"]: ErrorCode(each["error_code"]) for each in reply["results"]}


async def described(client: KafkaClient, *users: str) -> dict[str, list[tuple[int, int]] | ErrorCode]:
    reply = await client.ask("DescribeUserScramCredentials", users=[{"name": user} for user in users] or None)
    assert reply["error_code"] == 0
    return {
        each["user"]: ErrorCode(each["error_code"])
        if each["error_code"]
        else [(info["mechanism"], info["iterations"]) for info in each["credential_infos"]]
        for each in reply["results"]
    }


async def test_credentials_are_set_described_and_deleted(client: KafkaClient) -> None:
    assert await described(client) == {}
    assert await alter(client, upsertions=[ALICE, upsertion("a/b=,ü", SCRAM_SHA_512)]) == {
        "alice": ErrorCode.NONE,
        "a/b=,ü": ErrorCode.NONE,
    }
    more = upsertion("alice", SCRAM_SHA_512) | {"iterations": 16_384}
    assert await alter(client, upsertions=[more]) == {"alice": ErrorCode.NONE}
    expected = {"alice": [(1, 4096), (2, 16_384)], "a/b=,ü": [(2, 4096)]}
    assert await described(client) == expected
    assert await described(client, "a/b=,ü", "alice") == expected
    assert await alter(client, deletions=[{"name": "alice", "mechanism": 1}]) == {"alice": ErrorCode.NONE}
    assert await described(client, "alice", "bob") == {"alice": [(2, 16_384)], "bob": ErrorCode.RESOURCE_NOT_FOUND}
    assert await described(client, "alice", "alice") == {"alice": ErrorCode.DUPLICATE_RESOURCE}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": "u" * 2000}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 0}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16_385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salted_password": b"short"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
async def test_a_credential_is_refused(client: KafkaClient, change: dict[str, Any], error: ErrorCode) -> None:
    asked = upsertion("bob", SCRAM_SHA_256) | change
    assert await alter(client, upsertions=[ALICE, asked]) == {"alice": ErrorCode.NONE, asked["name"]: error}
    assert await described(client) == {"alice": [(1, 4096)]}


async def test_a_user_that_occurs_twice_is_not_changed(client: KafkaClient) -> None:
    await alter(client, upsertions=[ALICE])
    twice = {"alice": ErrorCode.DUPLICATE_RESOURCE}
    deletion = {"name": "alice", "mechanism": 1}
    assert await alter(client, upsertions=[ALICE, upsertion("alice", SCRAM_SHA_512)]) == twice
    assert await alter(client, upsertions=[ALICE], deletions=[deletion]) == twice
    assert await alter(client, deletions=[deletion, deletion]) == twice
    assert await described(client) == {"alice": [(1, 4096)]}
    missing = [{"name": "alice", "mechanism": 2}, {"name": "bob", "mechanism": 1}]
    assert set((await alter(client, deletions=missing)).values()) == {ErrorCode.RESOURCE_NOT_FOUND}


async def test_many_users_are_set_by_one_request(client: KafkaClient) -> None:
    users = [ALICE | {"name": f"user-{number}"} for number in range(250)]
    assert set((await alter(client, upsertions=users)).values()) == {ErrorCode.NONE}
    assert len(await described(client)) == 250
    deleted = [{"name": each["name"], "mechanism": 1} for each in users]
    assert set((await alter(client, deletions=deleted)).values()) == {ErrorCode.NONE}
    assert await described(client) == {}


async def test_credentials_survive_a_restart_in_a_private_file_and_are_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "data" / "metadata.sqlite"
    for _ in range(2):
        async with running(tmp_path / "data") as broker, kafka_client(broker.addresses.kafka) as client:
            if not await described(client):
                assert {S_IMODE(each.stat().st_mode) for each in file.parent.glob("metadata.sqlite*")} == {0o600}
                await alter(client, upsertions=[ALICE])
            assert await described(client) == {"alice": [(1, 4096)]}
        file.chmod(0o644)  # as versions before have left it
    async with running(tmp_path / "data"):
        assert {S_IMODE(each.stat().st_mode) for each in file.parent.glob("metadata.sqlite*")} == {0o600}
    with closing(sqlite3.connect(file)) as connection:
        ((value,),) = connection.execute("SELECT value FROM keys WHERE key = 'scram/alice/SCRAM-SHA-256'")
    assert b"stored_key" in value
    assert b"stored_key" not in caplog.text.encode()
    assert ALICE["salted_password"].hex() not in caplog.text
