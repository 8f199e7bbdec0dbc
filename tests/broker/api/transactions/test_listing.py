"""ListTransactions: filters by state, producer, duration and pattern."""

from pathlib import Path

import pytest

from tests.broker.api.transactions.asking import add, create, listed, started
from tests.broker.clients import running
from tests.broker.kafka_client import kafka_client
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.transactions.listing import compiled
from warmlog.broker.settings.patterns import MAX_PATTERN_LENGTH
from warmlog.protocol.errors import ErrorCode


async def test_transactions_are_listed_by_state_producer_and_duration(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        open_one, idle = await started(client, "open"), await started(client, "idle")
        await add(client, open_one, "words")
        for version in range(3):
            assert sorted(await listed(client, version)) == [("idle", "Empty"), ("open", "Ongoing")]
        assert await listed(client, state_filters=["Ongoing"]) == [("open", "Ongoing")]
        assert await listed(client, producer_id_filters=[idle["producer_id"]]) == [("idle", "Empty")]
        assert await listed(client, state_filters=["Ongoing"], duration_filter=3_600_000) == []
        broker.stop.set()


async def test_unknown_states_are_named_once_and_select_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await started(client)
        asked = {"state_filters": ["Ongoing", "Nope", "Nope"], "producer_id_filters": []}
        reply = await client.ask("ListTransactions", **asked)
        assert reply["unknown_state_filters"] == ("Nope",)
        assert await listed(client, state_filters=["Nope"]) == []
        broker.stop.set()


async def test_transactions_are_listed_by_a_pattern_that_matches_the_whole_id(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        for name in ("orders-1", "orders-2", "stock-1", "Größe"):
            await started(client, name)

        async def matching(pattern: str | None) -> set[str]:
            return {name for name, _ in await listed(client, transactional_id_pattern=pattern)}

        assert await matching("orders-.*") == {"orders-1", "orders-2"}
        assert await matching("orders") == set()
        assert await matching(r"\w+-1|Gr..e") == {"orders-1", "stock-1", "Größe"}
        assert len(await matching(None)) == len(await matching("")) == 4
        broker.stop.set()


@pytest.mark.parametrize("pattern", ["(", "*", r"(a)\1", "(?=x)", "((((a{100}){100}){100}){100})"])
async def test_a_pattern_that_cannot_be_compiled_is_refused(tmp_path: Path, pattern: str) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await started(client)
        asked = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": pattern}
        reply = await client.ask("ListTransactions", **asked)
        assert reply["error_code"] == ErrorCode.INVALID_REGULAR_EXPRESSION
        broker.stop.set()


def test_what_is_wrong_with_a_pattern_is_named() -> None:
    with pytest.raises(RequestError, match=r"`a\(` is not a valid regular expression: missing \)"):
        compiled("a(")
    with pytest.raises(RequestError, match="longer than 10000 characters"):
        compiled("a" * (MAX_PATTERN_LENGTH + 1))


def test_matching_takes_time_linear_in_the_length_of_an_id() -> None:
    assert compiled("(a*)*(a|a)*b")(["a" * 30_000]) == [False]  # a backtracking engine would not come back
