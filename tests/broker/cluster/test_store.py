"""What every store does: real etcd, and the local one, through the same client."""

from collections.abc import AsyncIterator, Callable

import pytest
import trio

from warmlog.broker.cluster.store import (
    ABSENT,
    MAX_OPERATIONS,
    ROUNDING_S,
    Changes,
    Compare,
    Delete,
    Deleted,
    KeyValue,
    LeaseExpiredError,
    Operation,
    Outcome,
    Put,
    Store,
    StoreError,
    StoreTransaction,
)

Client = Callable[[], Store]


@pytest.fixture
async def store(client: Client) -> Store:
    return client()


async def write(store: Store, *operations: Operation) -> int:
    outcome = await store.commit(StoreTransaction((), operations))
    assert outcome.succeeded
    return outcome.revision


async def read(changes: AsyncIterator[Changes], revision: int) -> list[KeyValue | Deleted]:
    """Return all events up to a revision."""
    events: list[KeyValue | Deleted] = []
    async for each in changes:
        events += each.events
        if each.revision >= revision:
            return events
    raise AssertionError


async def test_a_new_store_is_empty(store: Store) -> None:
    assert (await store.range()).items == ()


async def test_a_range_returns_keys_in_order_with_their_revisions(store: Store) -> None:
    first = await write(store, Put("topics/b", b"1"), Put("topics/a", b""))
    second = await write(store, Put("topics/b", b"2"))
    assert await store.range() == (
        second,
        (KeyValue("topics/a", b"", first, first), KeyValue("topics/b", b"2", first, second)),
    )


async def test_a_range_returns_only_keys_with_the_prefix(store: Store) -> None:
    await write(store, Put("brokers/1", b""), Put("brokers0", b""), Put("broker", b""), Put("brokers/", b""))
    assert [each.key for each in (await store.range("brokers/")).items] == ["brokers/", "brokers/1"]


async def test_a_range_of_several_pages_is_of_one_revision(store: Store) -> None:
    keys = [f"partitions/{number:05}" for number in range(2_100)]
    for begin in range(0, len(keys), MAX_OPERATIONS):
        revision = await write(store, *(Put(key, b"x") for key in keys[begin : begin + MAX_OPERATIONS]))
    found = await store.range()
    assert [each.key for each in found.items] == keys
    assert found.revision == revision


async def test_names_and_values_are_any_text_and_bytes(store: Store) -> None:
    value = bytes(range(256))
    await write(store, Put('topics/"ä\\\n€', value))
    (item,) = (await store.range()).items
    assert (item.key, item.value) == ('topics/"ä\\\n€', value)


async def test_a_deleted_key_is_created_anew(store: Store) -> None:
    await write(store, Put("a", b"1"))
    await write(store, Delete("a"))
    assert (await store.range()).items == ()
    revision = await write(store, Put("a", b"2"))
    assert (await store.range()).items == (KeyValue("a", b"2", revision, revision),)


async def test_a_transaction_is_committed_if_all_comparisons_hold(store: Store) -> None:
    revision = await write(store, Put("a", b"1"))
    outcome = await store.commit(StoreTransaction((Compare("a", revision), Compare("b", ABSENT)), (Put("b", b""),)))
    assert outcome == Outcome(succeeded=True, revision=revision + 1)


@pytest.mark.parametrize("compare", [Compare("a", ABSENT), Compare("b", 1), Compare("a", 1 << 62)])
async def test_a_transaction_writes_nothing_if_one_does_not_hold(store: Store, compare: Compare) -> None:
    revision = await write(store, Put("a", b"1"))
    outcome = await store.commit(StoreTransaction((Compare("c", ABSENT), compare), (Put("c", b""), Delete("a"))))
    assert outcome == Outcome(succeeded=False, revision=revision)
    assert [each.key for each in (await store.range()).items] == ["a"]


async def test_a_transaction_takes_the_maximal_number_of_operations(store: Store) -> None:
    compares = tuple(Compare(f"k{number}", ABSENT) for number in range(MAX_OPERATIONS))
    puts = tuple(Put(f"k{number}", b"") for number in range(MAX_OPERATIONS))
    assert (await store.commit(StoreTransaction(compares, puts))).succeeded


async def test_a_transaction_of_more_operations_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="too many operations"):
        await write(store, *(Put(f"k{number}", b"") for number in range(MAX_OPERATIONS + 1)))


async def test_a_delete_of_an_absent_key_is_no_event(store: Store) -> None:
    async with store.watch((await store.range()).revision) as changes:
        await write(store, Delete("absent"), Put("a", b""))
        assert [each.key for each in (await anext(changes)).events] == ["a"]


async def test_a_watch_reports_each_transaction_whole_and_in_order(store: Store) -> None:
    begin = await write(store, Put("before", b""))
    async with store.watch(begin) as changes:
        first = await write(store, Put("b", b"1"), Put("a", b"1"))
        assert await anext(changes) == (first, (KeyValue("b", b"1", first, first), KeyValue("a", b"1", first, first)))
        second = await write(store, Delete("b"), Put("a", b"2"))
        assert await anext(changes) == (second, (Deleted("b"), KeyValue("a", b"2", first, second)))


async def test_a_watch_begins_with_what_happened_before(store: Store) -> None:
    begin = (await store.range()).revision
    revisions = [await write(store, Put("a", str(number).encode())) for number in range(5)]
    async with store.watch(begin) as changes:
        events = await read(changes, revisions[-1])
    assert events == [
        KeyValue("a", str(number).encode(), revisions[0], revision) for number, revision in enumerate(revisions)
    ]


async def test_several_watches_see_the_same(store: Store) -> None:
    begin = (await store.range()).revision
    async with store.watch(begin) as one, store.watch(begin) as two:
        last = [await write(store, Put("a", b"")), await write(store, Delete("a"))][-1]
        assert await read(one, last) == await read(two, last)


async def test_the_end_of_a_lease_deletes_its_keys(store: Store) -> None:
    lease = await store.grant(60)
    revision = await write(store, Put("b", b"", lease), Put("a", b"", lease), Put("c", b""))
    assert [each.lease for each in (await store.range()).items] == [lease, lease, 0]
    async with store.watch(revision) as changes:
        await store.revoke(lease)
        assert await anext(changes) == (revision + 1, (Deleted("a"), Deleted("b")))


async def test_a_key_leaves_a_lease_when_it_is_written_without(store: Store) -> None:
    lease = await store.grant(60)
    await write(store, Put("a", b"", lease), Put("b", b"", lease))
    await write(store, Put("a", b"1"), Delete("b"))
    await write(store, Put("b", b"2"))
    await store.revoke(lease)
    assert [each.value for each in (await store.range()).items] == [b"1", b"2"]


async def test_a_lease_that_is_not_kept_alive_ends(store: Store) -> None:
    lease = await store.grant(1)  # etcd's floor is 2 s
    revision = await write(store, Put("a", b"", lease))
    async with store.watch(revision) as changes:
        assert (await anext(changes)).events == (Deleted("a"),)
    with pytest.raises(LeaseExpiredError):
        await store.keep_alive(lease)


async def test_keeping_a_lease_alive_returns_how_long_it_lasts(store: Store) -> None:
    lease = await store.grant(59.5)
    assert await store.keep_alive(lease) == pytest.approx(60, abs=0.6)


async def test_a_store_tells_for_how_long_a_lease_was_not_renewed(store: Store) -> None:
    lease = await store.grant(10)
    assert await store.unrenewed_s(lease) < ROUNDING_S
    while await store.unrenewed_s(lease) < ROUNDING_S:
        pass
    await store.keep_alive(lease)
    assert await store.unrenewed_s(lease) < ROUNDING_S
    await store.revoke(lease)
    with pytest.raises(LeaseExpiredError):
        await store.unrenewed_s(lease)


async def test_an_ended_lease_can_be_revoked_and_not_used(store: Store) -> None:
    lease = await store.grant(60)
    await store.revoke(lease)
    await store.revoke(lease)
    with pytest.raises(LeaseExpiredError):
        await store.keep_alive(lease)
    with pytest.raises(LeaseExpiredError):
        await write(store, Put("a", b"", lease))
    assert (await store.range()).items == ()


async def test_a_transaction_that_fails_does_not_ask_for_its_leases(store: Store) -> None:
    outcome = await store.commit(StoreTransaction((Compare("a", 1),), (Put("a", b"", 12345),)))
    assert not outcome.succeeded


async def test_clients_share_keys_and_leases(client: Client) -> None:
    one, two = client(), client()
    lease = await one.grant(60)
    await write(two, Put("a", b"", lease))
    await two.keep_alive(lease)
    await one.revoke(lease)
    assert (await two.range()).items == ()


async def test_concurrent_transactions_are_serialised(store: Store) -> None:
    done: list[Outcome] = []

    async def increment() -> None:
        while True:
            items = (await store.range("n")).items
            seen = items[0] if items else KeyValue("n", b"0", 0, ABSENT)
            value = str(int(seen.value) + 1).encode()
            outcome = await store.commit(StoreTransaction((Compare("n", seen.mod_revision),), (Put("n", value),)))
            if outcome.succeeded:
                done.append(outcome)
                return

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(increment)
    assert (await store.range()).items[0].value == b"10"
    assert len({outcome.revision for outcome in done}) == 10
