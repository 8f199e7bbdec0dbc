"""Brokers with a listener that clients log in to, and a client's side of it."""

from typing import Any

from tests.broker.clients import Running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.scram import MECHANISMS, Mechanism, ScramClient

PASSWORD = "open sesame"
LISTENERS = {
    "listeners": "OPEN://127.0.0.1:0,SASL://127.0.0.1:0,NATIVE://127.0.0.1:0",
    "listener.security.protocol.map": "OPEN:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    "warmlog.sasl.plain.without.tls": "true",
}
FAST = {**LISTENERS, "connection.failed.authentication.delay.ms": "0"}


def upsertion(user: str, mechanism: Mechanism, password: str = PASSWORD) -> dict[str, Any]:
    """What sets a credential."""
    return {
        "name": user,
        "mechanism": mechanism.number,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": mechanism.salted_password(password, b"salt", 4096),
    }


async def create_users(broker: Running, *users: str) -> None:
    """Create users with credentials for each mechanism."""
    async with kafka_client(broker.addresses.named["open"]) as client:
        for mechanism in MECHANISMS.values():
            reply = await client.ask(
                "AlterUserScramCredentials", deletions=(), upsertions=[upsertion(user, mechanism) for user in users]
            )
            assert [each["error_code"] for each in reply["results"]] == [0] * len(users), reply


async def log_in(
    client: KafkaClient, user: str = "alice", password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256"
) -> dict[str, Any]:
    """Log in, and return the last reply."""
    reply = await client.ask("SaslHandshake", 1, mechanism=mechanism)
    assert reply["error_code"] == 0, reply
    if mechanism == "PLAIN":
        return await client.ask("SaslAuthenticate", auth_bytes=f"\0{user}\0{password}".encode())
    scram = ScramClient(MECHANISMS[mechanism], user, password, "nonce")
    reply = await client.ask("SaslAuthenticate", auth_bytes=scram.first())
    if reply["error_code"]:
        return reply
    reply = await client.ask("SaslAuthenticate", auth_bytes=scram.final(bytes(reply["auth_bytes"])))
    if not reply["error_code"]:
        scram.verify(bytes(reply["auth_bytes"]))
    return reply
