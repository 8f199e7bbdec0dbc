"""ACLs by the command line, on a broker with an authorizer."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from warmlog.testing import Broker

Run = Callable[..., Any]
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture
def admin(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with Broker(settings=SETTINGS) as broker:
        monkeypatch.setenv("WARMLOG_KAFKA", broker.kafka)
        yield run


def test_acls_are_added_listed_and_removed(admin: Run) -> None:
    done = admin("acl", "add", "allow", "User:alice", "--operation", "read", "--operation", "describe",
                 "--topic", "orders", "--group-prefix", "team-")  # fmt: skip
    assert (done.status, done.out) == (0, b"4 ACLs added\n")
    assert (
        admin("acl", "add", "deny", "User:*", "--operation", "alter", "--cluster", "--host", "10.0.0.0/8").status == 0
    )
    listed = admin("acl", "list", "--json").json()
    assert len(listed) == 5
    assert {
        "principal": "User:alice", "permission": "allow", "operation": "read", "kind": "group", "name": "team-",
        "pattern": "prefix", "host": "*",
    } in listed  # fmt: skip
    assert [each["host"] for each in admin("acl", "list", "--cluster", "--json").json()] == ["10.0.0.0/8"]
    assert admin("acl", "list", "--principal", "User:bob", "--json").out == b""
    table = admin("acl", "list", "--topic", "orders").out.decode()
    assert "User:alice" in table
    assert "topic orders" in table
    assert admin("acl", "remove", "any", "User:alice", "--operation", "read", "--topic", "orders").out == (
        b"1 ACL removed\n"
    )
    assert admin("acl", "remove", "any", "any", "--group-prefix", "team-", "--topic", "orders").out == (
        b"3 ACLs removed\n"
    )
    assert len(admin("acl", "list", "--json").json()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "allow", "User:a", "--topic", "t"), "--operation"),
        (("add", "allow", "User:a", "--operation", "read"), "resource"),
        (("add", "allow", "user:a", "--operation", "read", "--topic", "t"), "case-sensitive: User:a"),
        (("remove", "any", "USER:a", "--topic", "t"), "case-sensitive: User:a"),
        (("add", "allow", "alice", "--operation", "read", "--topic", "t"), "TYPE:NAME"),
        (("add", "allow", "User:a", "--operation", "read", "--topic", "t", "--host", "10.0.0.0/40"), "range"),
        (("add", "allow", "User:a", "--operation", "write", "--group", "g"), "no write exists on a group; there are"),
        (("add", "allow", "User:a", "--operation", "read", "--topic", "t", "--cluster"), "no read exists on a cluster"),
        (("remove", "any", "any"), "resource"),
    ],
)
def test_what_is_not_valid_is_refused(admin: Run, arguments: tuple[str, ...], message: str) -> None:
    done = admin("acl", *arguments)
    assert done.status != 0
    assert message in done.err
