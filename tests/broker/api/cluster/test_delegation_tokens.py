"""Delegation tokens: who may create, see, renew and end them, and who logs in with one."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.sasl import FAST, create_users, log_in
from tests.broker.net.test_sasl import is_closed, works
from warmlog.broker.api.cluster import delegation_tokens
from warmlog.broker.security.authorizer import STANDARD_AUTHORIZER
from warmlog.broker.security.delegation_tokens import MAX_RENEWERS
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.scram import MECHANISMS, ScramClient

DAY_MS = 24 * 3_600_000
ENABLED = {**FAST, "delegation.token.secret.key": "a secret"}


@asynccontextmanager
async def enabled(path: Path, given: dict[str, str] = ENABLED) -> AsyncIterator[Running]:
    async with running(path / "data", given, http="127.0.0.1:0") as broker:
        await create_users(broker, "alice", "bob", "carol")
        yield broker


@asynccontextmanager
async def logged_in(broker: Running, user: str) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.named["sasl"]) as client:
        assert (await log_in(client, user))["error_code"] == 0
        yield client


def user(name: str) -> dict[str, str]:
    return {"principal_type": "User", "principal_name": name}


async def create(
    client: KafkaClient, *renewers: str, owner: str | None = None, lifetime_ms: int = -1
) -> dict[str, Any]:
    return await client.ask(
        "CreateDelegationToken",
        owner_principal_type=None if owner is None else "User",
        owner_principal_name=owner,
        renewers=[user(each) for each in renewers],
        max_lifetime_ms=lifetime_ms,
    )


async def with_token(
    broker: Running, token: dict[str, Any], *, extension: str = "tokenauth=true", mechanism: str = "SCRAM-SHA-256",
    password: str | None = None, name: str | None = None, client: KafkaClient,
) -> dict[str, Any]:  # fmt: skip
    """Log in with a token, and return the last reply."""
    reply = await client.ask("SaslHandshake", 1, mechanism=mechanism)
    assert reply["error_code"] == 0
    password = b64encode(bytes(token["hmac"])).decode() if password is None else password
    scram = ScramClient(MECHANISMS[mechanism], name or token["token_id"], password, "nonce")
    scram._bare += f",{extension}" if extension else ""
    reply = await client.ask("SaslAuthenticate", auth_bytes=scram.first())
    if reply["error_code"]:
        return reply
    reply = await client.ask("SaslAuthenticate", auth_bytes=scram.final(bytes(reply["auth_bytes"])))
    if not reply["error_code"]:
        scram.verify(bytes(reply["auth_bytes"]))
    return reply


async def describe(client: KafkaClient, *owners: str) -> list[dict[str, Any]]:
    reply = await client.ask("DescribeDelegationToken", owners=[user(each) for each in owners] if owners else None)
    assert reply["error_code"] == 0, reply
    return list(reply["tokens"])


async def test_a_token_has_the_times_that_the_settings_say(tmp_path: Path) -> None:
    async with enabled(tmp_path) as broker, logged_in(broker, "alice") as client:
        token = await create(client, "bob")
        assert token["error_code"] == 0
        assert (token["principal_name"], token["token_requester_principal_name"]) == ("alice", "alice")
        issued = token["issue_timestamp_ms"]
        assert (token["expiry_timestamp_ms"] - issued, token["max_timestamp_ms"] - issued) == (DAY_MS, 7 * DAY_MS)
        short = await create(client, lifetime_ms=1000)
        assert short["max_timestamp_ms"] - short["issue_timestamp_ms"] == 1000
        assert short["expiry_timestamp_ms"] == short["max_timestamp_ms"]
        (found,) = await describe(client, "bob")
        assert (found["token_id"], bytes(found["hmac"])) == (token["token_id"], bytes(token["hmac"]))
        assert [dict(each) for each in found["renewers"]] == [user("bob")]
        assert len(await describe(client)) == 2
        assert (await client.ask("DescribeDelegationToken", owners=[]))["tokens"] in ([], ())


@pytest.mark.parametrize("mechanism", list(MECHANISMS))
async def test_a_client_logs_in_as_the_owner(tmp_path: Path, mechanism: str) -> None:
    async with enabled(tmp_path) as broker, logged_in(broker, "alice") as owner:
        token = await create(owner)
        async with kafka_client(broker.addresses.named["sasl"]) as client:
            reply = await with_token(broker, token, mechanism=mechanism, client=client)
            assert reply["error_code"] == 0
            assert DAY_MS - 60_000 < reply["session_lifetime_ms"] <= DAY_MS
            assert await works(client)
            for api, fields in (
                ("CreateDelegationToken", {"renewers": (), "max_lifetime_ms": -1}),
                ("RenewDelegationToken", {"hmac": token["hmac"], "renew_period_ms": 1}),
                ("ExpireDelegationToken", {"hmac": token["hmac"], "expiry_time_period_ms": 1}),
                ("DescribeDelegationToken", {"owners": None}),
            ):
                reply = await client.ask(api, **fields)
                assert reply["error_code"] == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, api


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"password": "wrong"}, "invalid credentials"),
        ({"name": "unknown"}, "invalid credentials"),
        ({"name": "alice", "password": "open sesame"}, "invalid credentials"),
        ({"extension": ""}, "invalid credentials"),
        ({"extension": "tokenauth=false"}, "extensions of SCRAM are not supported"),
        ({"extension": "tokenauth=true,x=y"}, "extensions of SCRAM are not supported"),
    ],
)
async def test_others_are_refused(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    async with enabled(tmp_path) as broker, logged_in(broker, "alice") as owner:
        token = await create(owner)
        async with kafka_client(broker.addresses.named["sasl"]) as client:
            reply = await with_token(broker, token, client=client, **changes)  # type: ignore[arg-type]
            assert reply["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert why in reply["error_message"]
            assert await is_closed(client)


async def test_owners_and_renewers_renew_and_end_it(tmp_path: Path) -> None:
    async with (
        enabled(tmp_path) as broker,
        logged_in(broker, "alice") as alice,
        logged_in(broker, "bob") as bob,
        logged_in(broker, "carol") as carol,
    ):
        token = await create(alice, "bob")
        hmac, most = token["hmac"], token["max_timestamp_ms"]
        for client in (alice, bob):
            reply = await client.ask("RenewDelegationToken", hmac=hmac, renew_period_ms=-1)
            assert (reply["error_code"], reply["expiry_timestamp_ms"] <= most) == (0, True)
        reply = await bob.ask("RenewDelegationToken", hmac=hmac, renew_period_ms=5000)
        assert 0 <= reply["expiry_timestamp_ms"] - token["issue_timestamp_ms"] - 5000 < 60_000
        for api, field in (
            ("RenewDelegationToken", "renew_period_ms"),
            ("ExpireDelegationToken", "expiry_time_period_ms"),
        ):
            reply = await carol.ask(api, hmac=hmac, **{field: -1})
            assert reply["error_code"] == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            reply = await alice.ask(api, hmac=b"x", **{field: -1})
            assert (reply["error_code"], reply["expiry_timestamp_ms"]) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
        reply = await alice.ask("ExpireDelegationToken", hmac=hmac, expiry_time_period_ms=10_000)
        assert 0 <= reply["expiry_timestamp_ms"] - token["issue_timestamp_ms"] - 10_000 < 60_000
        assert (await bob.ask("ExpireDelegationToken", hmac=hmac, expiry_time_period_ms=-1))["error_code"] == 0
        assert await describe(alice) == []
        async with kafka_client(broker.addresses.named["sasl"]) as client:
            reply = await with_token(broker, token, client=client)
            assert "invalid credentials" in reply["error_message"]


async def test_an_expired_token_is_refused_and_removed(tmp_path: Path) -> None:
    given = {**ENABLED, "delegation.token.expiry.check.interval.ms": "1"}
    async with enabled(tmp_path) as broker, logged_in(broker, "alice") as alice:
        token = await create(alice, lifetime_ms=1)
        with trio.fail_after(30):
            while True:
                reply = await alice.ask("RenewDelegationToken", hmac=token["hmac"], renew_period_ms=-1)
                if reply["error_code"]:
                    break
        assert reply["error_code"] == ErrorCode.DELEGATION_TOKEN_EXPIRED
        reply = await alice.ask("ExpireDelegationToken", hmac=token["hmac"], expiry_time_period_ms=1)
        assert reply["error_code"] == ErrorCode.DELEGATION_TOKEN_EXPIRED
        async with kafka_client(broker.addresses.named["sasl"]) as client:
            assert "invalid credentials" in (await with_token(broker, token, client=client))["error_message"]
        assert len(await describe(alice)) == 1
    async with running(tmp_path / "data", given) as broker, logged_in(broker, "alice") as alice:
        with trio.fail_after(30):
            while await describe(alice):
                pass


async def test_tokens_outlive_a_restart_and_end_with_their_secret(tmp_path: Path) -> None:
    async with enabled(tmp_path) as broker, logged_in(broker, "alice") as alice:
        token = await create(alice)
    async with (
        running(tmp_path / "data", ENABLED) as broker,
        kafka_client(broker.addresses.named["sasl"]) as client,
    ):
        assert (await with_token(broker, token, client=client))["error_code"] == 0
    async with running(tmp_path / "data", {**ENABLED, "delegation.token.secret.key": "another"}) as broker:
        async with kafka_client(broker.addresses.named["sasl"]) as client:
            assert "invalid credentials" in (await with_token(broker, token, client=client))["error_message"]
        async with logged_in(broker, "alice") as alice:
            assert await describe(alice) == []


async def test_without_a_secret_there_are_none(tmp_path: Path) -> None:
    async with enabled(tmp_path, FAST) as broker, logged_in(broker, "alice") as alice:
        assert (await create(alice))["error_code"] == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        for api, fields in (
            ("RenewDelegationToken", {"hmac": b"x", "renew_period_ms": 1}),
            ("ExpireDelegationToken", {"hmac": b"x", "expiry_time_period_ms": 1}),
            ("DescribeDelegationToken", {"owners": None}),
        ):
            assert (await alice.ask(api, **fields))["error_code"] == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        async with kafka_client(broker.addresses.named["sasl"]) as client:
            reply = await with_token(broker, {"hmac": b"x", "token_id": "x"}, client=client)
            assert "delegation tokens are not enabled" in reply["error_message"]
        async with kafka_client(broker.addresses.named["open"]) as client:
            assert (await create(client))["error_code"] == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


async def test_a_request_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "MAX_OF_OWNER", 2)
    async with enabled(tmp_path) as broker, logged_in(broker, "alice") as alice:
        assert (await create(alice, *map(str, range(MAX_RENEWERS + 1))))["error_code"] == ErrorCode.INVALID_REQUEST
        assert (await create(alice, "r" * 2000))["error_code"] == ErrorCode.INVALID_REQUEST
        group = {"principal_type": "Group", "principal_name": "g"}
        reply = await alice.ask("CreateDelegationToken", renewers=[group], max_lifetime_ms=-1)
        assert reply["error_code"] == ErrorCode.INVALID_PRINCIPAL_TYPE
        for expected in (0, 0, ErrorCode.POLICY_VIOLATION):
            assert (await create(alice))["error_code"] == expected
        assert (await create(alice, owner="bob"))["error_code"] == 0


async def test_rights_on_users_and_tokens(tmp_path: Path) -> None:
    given = {**ENABLED, "authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    async with (
        enabled(tmp_path, given) as broker,
        logged_in(broker, "alice") as alice,
        logged_in(broker, "bob") as bob,
        logged_in(broker, "carol") as carol,
    ):
        own = await create(alice, "bob")
        assert own["error_code"] == 0
        assert (await create(bob, owner="alice"))["error_code"] == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED

        async def allow(principal: str, resource: tuple[int, str], operation: int) -> None:
            acl = {
                "resource_type": resource[0],
                "resource_name": resource[1],
                "pattern_type": 3,
                "principal": principal,
                "host": "*",
                "operation": operation,
                "permission_type": 3,
            }
            async with kafka_client(broker.addresses.named["open"]) as client:
                assert (await client.ask("CreateAcls", creations=[acl]))["results"][0]["error_code"] == 0

        await allow("User:bob", (7, "User:alice"), 13)
        made = await create(bob, owner="alice")
        assert (made["error_code"], made["principal_name"], made["token_requester_principal_name"]) == (
            0,
            "alice",
            "bob",
        )
        assert len(await describe(alice)) == 2
        assert [each["token_id"] for each in await describe(bob)] == [own["token_id"]]
        assert await describe(carol) == []
        await allow("User:carol", (6, own["token_id"]), 8)
        assert [each["token_id"] for each in await describe(carol)] == [own["token_id"]]
        await allow("User:carol", (7, "User:alice"), 14)
        assert len(await describe(carol)) == 2
        assert await describe(carol, "carol") == []


async def test_the_audit_log_names_tokens_by_their_id(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    settings = {**ENABLED, "warmlog.audit.file": str(log)}
    async with enabled(tmp_path, settings) as broker, logged_in(broker, "alice") as client:
        token = await create(client, "bob")
        await client.ask("RenewDelegationToken", hmac=token["hmac"], renew_period_ms=-1)
        await client.ask("RenewDelegationToken", hmac=b"unknown", renew_period_ms=-1)
        await client.ask("ExpireDelegationToken", hmac=token["hmac"], expiry_time_period_ms=-1)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    changes = [(each["api"]["operation"], each["resources"][0]["name"]) for each in events if "resources" in each]
    named = token["token_id"]
    assert [name for api, name in changes if "token" in api.lower()] == [named, named, "", named]
    assert token["hmac"].hex() not in log.read_text()
