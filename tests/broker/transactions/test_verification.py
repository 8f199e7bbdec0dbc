"""What producers are told when the coordinator refuses their partition."""

import pytest

from warmlog.broker.transactions.verification import TransactionSupport, produce_error, support_of
from warmlog.protocol.errors import ErrorCode

OLD, ABORTABLE, ADDING = TransactionSupport


@pytest.mark.parametrize(
    ("api", "version", "support"),
    [
        ("produce", 10, OLD),
        ("produce", 11, ABORTABLE),
        ("produce", 12, ADDING),
        ("txn_offset_commit", 3, OLD),
        ("txn_offset_commit", 4, ABORTABLE),
        ("txn_offset_commit", 5, ADDING),
    ],
)
def test_the_version_of_a_request_tells_what_its_client_knows(
    api: str, version: int, support: TransactionSupport
) -> None:
    assert support_of(api, version) is support


def test_a_fenced_producer_is_told_about_its_epoch() -> None:
    for support in TransactionSupport:
        assert produce_error(ErrorCode.PRODUCER_FENCED, support) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_partition_that_was_not_added_is_an_invalid_state_to_old_clients() -> None:
    assert produce_error(ErrorCode.TRANSACTION_ABORTABLE, OLD) is ErrorCode.INVALID_TXN_STATE
    assert produce_error(ErrorCode.TRANSACTION_ABORTABLE, ABORTABLE) is ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize(
    "error",
    [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR],
)
def test_a_coordinator_that_is_away_looks_like_missing_replicas(error: ErrorCode) -> None:
    for support in TransactionSupport:
        assert produce_error(error, support) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_busy_coordinator_is_told_as_it_is_to_clients_that_know_it() -> None:
    assert produce_error(ErrorCode.CONCURRENT_TRANSACTIONS, ADDING) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert produce_error(ErrorCode.CONCURRENT_TRANSACTIONS, OLD) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce_error(ErrorCode.CONCURRENT_TRANSACTIONS, ABORTABLE) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_all_other_codes_stay() -> None:
    for support in TransactionSupport:
        assert produce_error(ErrorCode.INVALID_PRODUCER_ID_MAPPING, support) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
