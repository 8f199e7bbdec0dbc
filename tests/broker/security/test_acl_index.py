"""The index decides as a scan over all ACLs by the published rules does."""

from itertools import combinations, product
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.security import acl_model
from warmlog.broker.security.acl_index import AclIndex
from warmlog.broker.security.acls import (
    Acl,
    AclFilter,
    InvalidAclError,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
    host_of,
)
from warmlog.broker.security.authorizer import MAX_DECISIONS, Authorizer, parse_super_users
from warmlog.broker.security.principal import Principal

ALICE, ANYONE, BOB = "User:alice", "User:*", "User:bob"
HERE, THERE = "10.0.0.1", "10.0.1.1"


def index_of(*acls: Acl) -> AclIndex:
    index = AclIndex()
    for number, acl in enumerate(acls):
        index.add(UUID(int=number), acl)
    return index


def topic_acl(
    name: str = "t",
    pattern: PatternType = PatternType.LITERAL,
    principal: str = ALICE,
    host: str = "*",
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(ResourceType.TOPIC, name, pattern, principal, host, operation, permission)


def check(index: AclIndex, acls: tuple[Acl, ...], principal: str, host: str, operation: Operation, name: str) -> None:
    found = index.decide(principal, host_of(host), operation, ResourceType.TOPIC, name)
    expected = acl_model.decide(acls, principal, host, operation.name, "TOPIC", name)
    assert found is expected, (acls, principal, host, operation, name)


def test_every_set_of_two_small_acls_decides_as_the_rules_say() -> None:
    patterns = [("ab", PatternType.LITERAL), ("*", PatternType.LITERAL), ("a", PatternType.PREFIXED),
                ("*", PatternType.PREFIXED), ("abc", PatternType.PREFIXED)]  # fmt: skip
    whole = [
        topic_acl(name, pattern, principal, host, operation, permission)
        for (name, pattern), principal, host, operation, permission in product(
            patterns,
            (ALICE, ANYONE),
            ("*", HERE),
            (Operation.ALL, Operation.WRITE, Operation.DESCRIBE),
            (Permission.ALLOW, Permission.DENY),
        )
    ]
    sets = [(), *[(acl,) for acl in whole], *combinations(whole, 2)]
    for acls in sets:
        index = index_of(*acls)
        for host, operation, name in product(
            (HERE, THERE), (Operation.WRITE, Operation.DESCRIBE, Operation.READ), ("ab", "*")
        ):
            check(index, acls, ALICE, host, operation, name)


NAMES = st.text("ab*", min_size=1, max_size=5)
ACLS = st.builds(
    topic_acl,
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([ALICE, ANYONE, BOB]),
    st.sampled_from(["*", HERE, THERE, "10.0.0.0/24", "10.0.0.0/8"]),
    st.sampled_from([each for each in Operation if each >= Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
OPERATIONS = st.sampled_from([each for each in Operation if each > Operation.ALL])


@settings(max_examples=400)
@given(st.lists(ACLS, max_size=30), st.sampled_from([ALICE, BOB]), st.sampled_from([HERE, THERE]), OPERATIONS, NAMES)
def test_many_acls_decide_as_the_rules_say(
    acls: list[Acl], principal: str, host: str, operation: Operation, name: str
) -> None:
    index = index_of(*acls)
    check(index, tuple(acls), principal, host, operation, name)
    some = index.allows_some(principal, host_of(host), operation, ResourceType.TOPIC)
    assert some == acl_model.allows_some(acls, principal, host, operation.name, "TOPIC")


@settings(max_examples=200)
@given(st.lists(ACLS, max_size=12), st.lists(st.integers(0, 11)), OPERATIONS, NAMES)
def test_removed_acls_leave_nothing_behind(
    acls: list[Acl], removed: list[int], operation: Operation, name: str
) -> None:
    index = index_of(*acls)
    for number in removed:
        index.remove(UUID(int=number))
    left = tuple(acl for number, acl in enumerate(acls) if number not in removed)
    check(index, left, ALICE, HERE, operation, name)
    assert len(index) == len(left)
    assert {acl for _, acl in index.items()} == set(left)
    for number in range(len(acls)):
        index.remove(UUID(int=number))
    for found in index._types.values():
        assert not found.literal
        assert not found.prefixed
        assert not found.of_principal


def test_each_change_advances_the_revision() -> None:
    index, acl_id = AclIndex(), uuid4()
    revisions = [index.revision]
    for change in (lambda: index.add(acl_id, topic_acl()), lambda: index.remove(acl_id)):
        change()
        revisions.append(index.revision)
    assert len(set(revisions)) == 3
    index.remove(acl_id)
    assert index.revision == revisions[-1]


def test_a_decision_among_a_hundred_thousand_acls_looks_at_few() -> None:
    index = AclIndex()
    for number in range(50_000):
        index.add(UUID(int=2 * number), topic_acl(f"team-{number}-", PatternType.PREFIXED, f"User:{number}"))
        index.add(UUID(int=2 * number + 1), topic_acl(f"topic-{number}", principal=f"User:{number}"))
    for number in range(200):
        index.add(uuid4(), topic_acl("*", principal=f"User:{number}"))
    found = index._types[ResourceType.TOPIC]
    assert len(list(found.matching("team-1234-orders"))) == 2
    assert len(list(found.matching("topic-7"))) == 2
    assert index.decide("User:1234", host_of(HERE), Operation.READ, ResourceType.TOPIC, "team-1234-orders")
    assert not index.decide("User:1235", host_of(HERE), Operation.READ, ResourceType.TOPIC, "team-1234-orders")


def test_an_address_has_one_form() -> None:
    index = index_of(topic_acl(host="0:0:0:0:0:0:0:1"), topic_acl("u", host="10.1.2.3"))
    assert index.decide(ALICE, host_of("::1"), Operation.READ, ResourceType.TOPIC, "t")
    assert index.decide(ALICE, host_of("::ffff:10.1.2.3"), Operation.READ, ResourceType.TOPIC, "u")


# -- the authorizer --


def authorizer_of(*acls: Acl, allows_unnamed: bool = False) -> tuple[Authorizer, AclIndex]:
    index = index_of(*acls)
    return Authorizer(index, {"User:admin"}, allows_unnamed=allows_unnamed), index


def test_a_super_user_is_not_denied() -> None:
    authorizer, _ = authorizer_of(topic_acl(principal=ANYONE, operation=Operation.ALL, permission=Permission.DENY))
    for name, may in (("admin", True), ("alice", False)):
        decisions = authorizer.decisions(None, Principal(name), HERE)
        assert authorizer.allows(decisions, Operation.READ, ResourceType.TOPIC, "t") is may


@pytest.mark.parametrize("allows_unnamed", [True, False])
def test_a_resource_without_acls_is_open_if_the_setting_says_so(*, allows_unnamed: bool) -> None:
    authorizer, _ = authorizer_of(topic_acl(principal=BOB), allows_unnamed=allows_unnamed)
    decisions = authorizer.decisions(None, Principal("alice"), HERE)
    assert not authorizer.allows(decisions, Operation.READ, ResourceType.TOPIC, "t")
    assert authorizer.allows(decisions, Operation.READ, ResourceType.TOPIC, "other") is allows_unnamed
    assert authorizer.allows(decisions, Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster") is allows_unnamed


def test_decisions_are_kept_until_an_acl_changes() -> None:
    authorizer, index = authorizer_of(topic_acl())
    alice = Principal("alice")
    first = authorizer.decisions(None, alice, HERE)
    assert authorizer.allows(first, Operation.READ, ResourceType.TOPIC, "t")
    assert authorizer.decisions(first, alice, HERE) is first
    index.remove(UUID(int=0))
    second = authorizer.decisions(first, alice, HERE)
    assert second is not first
    assert not authorizer.allows(second, Operation.READ, ResourceType.TOPIC, "t")


def test_another_principal_on_the_same_connection_is_decided_for_again() -> None:
    authorizer, _ = authorizer_of(topic_acl())
    alice = authorizer.decisions(None, Principal("alice"), HERE)
    assert authorizer.allows(alice, Operation.READ, ResourceType.TOPIC, "t")
    bob = authorizer.decisions(alice, Principal("bob"), HERE)
    assert not authorizer.allows(bob, Operation.READ, ResourceType.TOPIC, "t")


def test_a_session_keeps_a_bounded_number_of_decisions() -> None:
    authorizer, _ = authorizer_of()
    decisions = authorizer.decisions(None, Principal("alice"), HERE)
    for number in range(3 * MAX_DECISIONS):
        authorizer.allows(decisions, Operation.READ, ResourceType.TOPIC, str(number))
    assert len(decisions.known) <= MAX_DECISIONS


def test_super_users_are_separated_by_semicolons() -> None:
    assert parse_super_users("User:a; User:CN=b,O=c;") == {"User:a", "User:CN=b,O=c"}
    with pytest.raises(ValueError, match="TYPE:NAME"):
        parse_super_users("alice")


# -- validation and filters --

VALID = (2, "t", 3, ALICE, "*", 3, 3)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 1, "resource type must not be ANY"),
        (0, 99, "unknown resource type 99"),
        (1, "", "name is empty"),
        (0, 4, "kafka-cluster"),
        (2, 2, "pattern type must not be MATCH"),
        (3, "alice", "TYPE:NAME"),
        (4, "", "host is empty"),
        (4, "10.0.0.0/99", "range of addresses"),
        (4, "10.0.0.0/255.0.0.0", "ADDRESS/BITS"),
        (4, "::ffff:10.0.0.0/104", "one of IPv4"),
        (4, "localhost/8", "range of addresses"),
        (5, 1, "operation must not be ANY"),
        (6, 1, "permission type must not be ANY"),
    ],
)
def test_an_invalid_acl_is_refused(place: int, value: object, message: str) -> None:
    fields = [*VALID]
    fields[place] = value  # type: ignore[call-overload]
    with pytest.raises(InvalidAclError, match=message):
        check_acl(tuple(fields))  # type: ignore[arg-type]


def test_a_filter_selects_patterns_as_kafka_does() -> None:
    acls = [
        topic_acl("orders"),
        topic_acl("ord", PatternType.PREFIXED),
        topic_acl("*"),
        topic_acl("orders", PatternType.PREFIXED),
        topic_acl("other"),
    ]

    def selected(pattern: PatternType, name: str | None = "orders") -> list[int]:
        asked = AclFilter(resource_type=ResourceType.TOPIC, name=name, pattern=pattern)
        return [number for number, acl in enumerate(acls) if asked.matches(acl)]

    assert selected(PatternType.LITERAL) == [0]
    assert selected(PatternType.PREFIXED) == [3]
    assert selected(PatternType.ANY) == [0, 3]
    assert selected(PatternType.MATCH) == [0, 1, 2, 3]
    assert selected(PatternType.ANY, None) == [0, 1, 2, 3, 4]
    assert not AclFilter(host="1.2.3.4").matches(acls[0])
    assert not AclFilter(operation=Operation.WRITE).matches(acls[0])
    assert not AclFilter(permission=Permission.DENY).matches(acls[0])
