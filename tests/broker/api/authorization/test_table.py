"""The words of the table are the rights that its checks ask for."""

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.broker.api.authorization.rig import Certificates, secured
from tests.broker.api.authorization.test_walk import GROUP, ID, OPEN, TOPIC, api_of, ask, asked
from tests.protocol.kafka.messages import VERSIONS
from warmlog.broker.api.access import Access
from warmlog.broker.api.authorization.table import ROWS
from warmlog.broker.security.acl_index import AclIndex
from warmlog.broker.security.acls import Host, Operation

WORDS = re.compile(r"\b[A-Z]+(?:_[A-Z]+)*\b")
#: Asked for only where the request differs from that of the walk.
UNSEEN = {
    "produce": {"CREATE", "ALTER"},
    "find_coordinator": {"CLUSTER_ACTION"},
    "metadata": {"CREATE"},
    "init_producer_id": {"IDEMPOTENT_WRITE"},  # without a transactional id
    "create_topics": {"DESCRIBE_CONFIGS"},
    "describe_cluster": {"DESCRIBE"},
    "fetch": {"CLUSTER_ACTION"},
    "list_offsets": {"CLUSTER_ACTION"},
    "delete_topics": {"DESCRIBE"},
    "share_group_heartbeat": {"DESCRIBE"},  # with a member id
    "streams_group_heartbeat": {"DESCRIBE", "CREATE"},  # with a topology, and internal topics
}


class Asked:
    """What the ACLs were asked: they allow or deny everything, as `answer` says."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.operations: set[str] = set()

    def decide(self, _: AclIndex, __: str, ___: Host, operation: Operation, *____: object) -> bool:
        self.operations.add(operation.name)
        return self.answer


def words(key: str) -> set[str]:
    """Return the operations that the table names for an API."""
    return {word for word in WORDS.findall(ROWS[key].needs) if word in Operation.__members__}


def by_api() -> Iterator[tuple[str, list[int]]]:
    for api in {api.name: api for api, _ in VERSIONS}.values():
        if api.name not in OPEN:
            yield api.name, list(range(api.first, api.last + 1))


async def test_each_check_asks_for_the_rights_in_its_row(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, set[str]] = {}
    revisions = count(1)
    apis = {api.name: api for api, _ in VERSIONS}
    async with secured(certificates, tmp_path / "data") as broker:
        await broker.prepare(TOPIC, GROUP, ID)
        client = await broker.client("stranger")
        for answer in (False, True):
            for name, versions in by_api():
                if answer and name in {"DeleteTopics", "DeleteGroups"}:
                    continue  # others need them
                recorder = Asked(answer)
                with monkeypatch.context() as patch:
                    patch.setattr(AclIndex, "decide", lambda *each, seen=recorder: seen.decide(*each))
                    patch.setattr(Access, "operations", lambda *_: 0)  # asks for all, and shows them
                    patch.setattr(AclIndex, "allows_some", lambda *each, seen=recorder: seen.decide(*each))
                    revision = property(lambda _: next(revisions), lambda *_: None)  # so that no decision is kept
                    patch.setattr(AclIndex, "revision", revision, raising=False)
                    for version in versions if not answer else versions[-1:]:
                        values = asked(apis[name], version, TOPIC, GROUP, ID, bytes(16))
                        values = {key: False if key.startswith("include_") else each for key, each in values.items()}
                        await ask(client, apis[name], version, values)
                found.setdefault(api_of(apis[name]), set()).update(recorder.operations)
    for key, operations in found.items():
        assert operations <= words(key), (key, operations)
        assert words(key) - operations <= UNSEEN.get(key, set()), (key, operations)
