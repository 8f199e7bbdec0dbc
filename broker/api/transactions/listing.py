"""ListTransactions: return the transactional ids that match all filters.

Clients choose the pattern, so matching must take no more than time linear in the length of an id. Kafka matches with
RE2/J, warmlog with RE2, which has the same syntax. A worker thread matches ids, one slice at a time.

Source: kafka.coordinator.transaction.TransactionStateManager (listTransactionStates); KIP-664, KIP-994, KIP-1152.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import RequestError
from warmlog.broker.api.handler import Handler
from warmlog.broker.settings.patterns import PatternError, compile_pattern
from warmlog.broker.transactions.metadata import Metadata
from warmlog.broker.transactions.service import TransactionService
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

STATES = {state.label: state for state in TransactionState}
IDS_PER_SLICE = 500  # ids matched in one step of a worker

Matches: TypeAlias = Callable[[Sequence[str]], list[bool]]


class ListTransactionsApi:
    """Answers ListTransactions."""

    def __init__(self, transactions: TransactionService) -> None:
        self._transactions = transactions
        self._coordinator = transactions.coordinator

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {ListTransactionsRequest.api: self.list_transactions}

    async def list_transactions(self, request: ListTransactionsRequest, context: Context) -> ListTransactionsResponse:
        """List the ids that match all filters; each unknown state name is returned once."""
        matches = None
        if request.pattern:
            matches = await context.in_worker(partial(compiled, request.pattern), len(request.pattern))
        if self._coordinator.is_loading:
            return ListTransactionsResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states: set[TransactionState] = set()
        unknown: dict[str, None] = {}
        for name in request.states:
            if name in STATES:
                states.add(STATES[name])
            else:
                unknown[name] = None
            await context.checkpoint()
        listed: list[ListedTransaction] = []
        if states or not request.states:
            producer_ids: set[int] = set()
            for producer_id in request.producer_ids:
                producer_ids.add(producer_id)
                await context.checkpoint()
            listed = await self._select(request, producer_ids, states, matches, context)
        return ListTransactionsResponse(unknown_states=tuple(unknown), transactions=tuple(listed))

    async def _select(
        self,
        request: ListTransactionsRequest,
        producer_ids: set[int],
        states: set[TransactionState],
        matches: Matches | None,
        context: Context,
    ) -> list[ListedTransaction]:
        listed: list[ListedTransaction] = []
        unmatched: list[ListedTransaction] = []
        for selected in self._coordinator.select(
            self._transactions.now_ms(),
            producer_ids=producer_ids,
            states=states,
            min_duration_ms=request.min_duration_ms,
        ):
            if selected is not None:
                (listed if matches is None else unmatched).append(_listed(*selected))
            if matches is not None and len(unmatched) >= IDS_PER_SLICE:
                listed += await _matching(matches, unmatched, context)
                unmatched = []
            await context.checkpoint()
        if matches is not None and unmatched:
            listed += await _matching(matches, unmatched, context)
        return listed


def _listed(transactional_id: str, metadata: Metadata) -> ListedTransaction:
    return ListedTransaction(
        transactional_id=transactional_id, producer_id=metadata.producer_id, state=metadata.state.label
    )


async def _matching(
    matches: Matches, candidates: Sequence[ListedTransaction], context: Context
) -> list[ListedTransaction]:
    ids = [transaction.transactional_id for transaction in candidates]
    results = await context.in_worker(partial(matches, ids), len(ids))
    return [transaction for transaction, is_match in zip(candidates, results, strict=True) if is_match]


def compiled(pattern: str) -> Matches:
    """Return a predicate for ids that match a pattern completely.

    Raises RequestError (INVALID_REGULAR_EXPRESSION) for what RE2 does not support. Call it in a worker.
    """
    try:
        program = compile_pattern(pattern)
    except PatternError as error:
        raise RequestError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"Transaction ID pattern `{pattern[:100]}` is not a valid regular expression: {error}.",
        ) from None
    return lambda ids: [program.fullmatch(transactional_id) is not None for transactional_id in ids]
