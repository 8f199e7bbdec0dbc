"""EndTxn: Kafka's tables, cell by cell."""

import pytest

from warmlog.broker.transactions.effects import Producer
from warmlog.broker.transactions.ending import DECIDE, check_end_v0, check_end_v5
from warmlog.broker.transactions.metadata import LAST_CLIENT_EPOCH, Metadata, State
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.markers import Outcome

COMMIT, ABORT = Outcome.COMMIT, Outcome.ABORT
DONE, FENCED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED
BUSY, INVALID = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE
EPOCH = 10


def metadata(state: State, *, epoch: int = EPOCH, producer_id: int = 7, previous_id: int = 7) -> Metadata:
    return Metadata(
        producer_id=producer_id,
        previous_producer_id=previous_id,
        producer_epoch=epoch,
        timeout_ms=1,
        state=state,
        updated_ms=0,
    )


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (State.ONGOING, DECIDE, DECIDE),
        (State.PREPARE_COMMIT, BUSY, INVALID),
        (State.PREPARE_ABORT, INVALID, BUSY),
        (State.COMPLETE_COMMIT, DONE, INVALID),
        (State.COMPLETE_ABORT, INVALID, DONE),
        (State.EMPTY, INVALID, INVALID),
    ],
)
def test_versions_0_to_4_are_answered_by_the_state(
    state: State, commit: ErrorCode | None, abort: ErrorCode | None
) -> None:
    for outcome, expected in ((COMMIT, commit), (ABORT, abort)):
        for epoch, answer in ((EPOCH, expected), (EPOCH - 1, FENCED), (EPOCH + 1, FENCED)):
            producer = Producer(7, epoch)
            assert check_end_v0(metadata(state), is_changing=False, producer=producer, outcome=outcome) is answer


@pytest.mark.parametrize(
    ("state", "commit_retry", "commit_present", "abort_retry", "abort_present"),
    [
        (State.ONGOING, FENCED, DECIDE, FENCED, DECIDE),
        (State.PREPARE_COMMIT, BUSY, FENCED, INVALID, FENCED),
        (State.PREPARE_ABORT, INVALID, FENCED, BUSY, FENCED),
        (State.COMPLETE_COMMIT, DONE, INVALID, INVALID, DECIDE),
        (State.COMPLETE_ABORT, INVALID, INVALID, DONE, DECIDE),
        (State.EMPTY, FENCED, INVALID, FENCED, DECIDE),
    ],
)
def test_version_5_is_answered_by_state_and_epoch(
    state: State,
    commit_retry: ErrorCode | None,
    commit_present: ErrorCode | None,
    abort_retry: ErrorCode | None,
    abort_present: ErrorCode | None,
) -> None:
    expected = {
        (COMMIT, EPOCH - 1): commit_retry,
        (COMMIT, EPOCH): commit_present,
        (ABORT, EPOCH - 1): abort_retry,
        (ABORT, EPOCH): abort_present,
    }
    for outcome in Outcome:
        for epoch in (EPOCH - 2, EPOCH - 1, EPOCH, EPOCH + 1):
            found = check_end_v5(metadata(state), is_changing=False, producer=Producer(7, epoch), outcome=outcome)
            assert found is expected.get((outcome, epoch), FENCED), (outcome, epoch)


@pytest.mark.parametrize("state", State)
def test_a_retry_with_the_last_epoch_of_the_previous_producer_id_is_recognized(state: State) -> None:
    present = metadata(state, epoch=0, producer_id=8, previous_id=7)
    retry = Producer(7, LAST_CLIENT_EPOCH)
    for outcome in Outcome:
        found = check_end_v5(present, is_changing=False, producer=retry, outcome=outcome)
        if state in {State.COMPLETE_COMMIT, State.COMPLETE_ABORT}:
            is_same = (state is State.COMPLETE_COMMIT) == (outcome is COMMIT)
            assert found is (DONE if is_same else INVALID)
        else:
            assert found is FENCED
    other = Producer(6, LAST_CLIENT_EPOCH)
    found = check_end_v5(present, is_changing=False, producer=other, outcome=COMMIT)
    assert found is ErrorCode.INVALID_PRODUCER_ID_MAPPING
