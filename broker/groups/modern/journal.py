"""Changes of a group that are not stored yet, the answers that wait for them, and their undoing.

A decision changes the state immediately, and the next decision builds on it, as in Kafka's coordinator runtime. If a
change cannot be stored, it is undone together with all later ones. Their records may nevertheless be in the log, or
reach it later, if a write timed out or had already begun. So the current values of the changed keys are written after
them and, if that fails, with the next change.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from warmlog.broker.groups.automaton import Answer, Waiter
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.protocol.errors import ErrorCode

K = TypeVar("K")
V = TypeVar("V")


class Records(Protocol[K, V]):
    """The state of a group, described by its records."""

    def apply(self, key: K, value: V | None) -> V | None:
        """Set, or with None delete, the value of a key. Returns the previous value."""

    def rows(self) -> Iterator[tuple[K, V | None]]:
        """Yield the records that describe the group."""

    def record_keys(self) -> list[K]:
        """Return the keys of all records that may exist, in an order in which Kafka can read their tombstones."""


@dataclass(slots=True)
class _Change(Generic[K, V]):
    """Records of one `StoreRows`, with the values before, and the effects that wait for it."""

    ticket: int
    undo: list[tuple[K, V | None]]
    corrected: list[K]  # keys written again with their former values
    then: list[Any] = field(default_factory=list)
    is_stored: bool = False
    is_correction: bool = False
    is_downgrade: bool = False


def _failed(effects: Sequence[Any], error: ErrorCode) -> list[Answer]:
    """Replace answers by answers of the same type with an error. Other effects are dropped."""
    answers = [effect for effect in effects if isinstance(effect, Answer)]
    return [Answer(answer.waiter, type(answer.response)(error=error)) for answer in answers]


class Journal(Generic[K, V]):
    """Applies the changes of one group, and keeps them until they are stored."""

    __slots__ = ("_deletion", "_effects", "_group", "_pending", "_rows", "_suspects", "_ticket", "_undo", "_undone")

    def __init__(self, group: Records[K, V], deletion: Sequence[type[K]]) -> None:
        """Begin without changes. `deletion`: the types of keys in an order in which Kafka can read their tombstones."""
        self._group = group
        self._deletion = {kind: number for number, kind in enumerate(deletion)}
        self._effects: list[Any] = []
        self._rows: list[tuple[K, V | None]] = []  # of the current decision
        self._undo: list[tuple[K, V | None]] = []
        self._pending: deque[_Change[K, V]] = deque()
        self._undone: dict[int, dict[K, None]] = {}  # by ticket, until its outcome is known
        self._suspects: dict[K, None] = {}  # keys whose records may differ from their values
        self._ticket = 0

    def _deletion_order(self, key: K) -> int:
        return self._deletion[type(key)]

    @property
    def is_settled(self) -> bool:
        """Whether all changes are stored."""
        return not self._pending

    @property
    def is_downgrading(self) -> bool:
        """Whether the store of a classic group that replaces this group, the last change, has no outcome yet."""
        return bool(self._pending) and self._pending[-1].is_downgrade

    @property
    def row_count(self) -> int:
        """The number of records of the current decision."""
        return len(self._rows)

    def take(self) -> list[Any]:
        """Remove and return the effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def abandon(self) -> list[K]:
        """Drop the stores since the last `take`; return their keys, and those of undone changes in flight."""
        keys = [key for effect in self._effects if isinstance(effect, StoreRows) for key, _ in effect.rows]
        self._effects = [effect for effect in self._effects if not isinstance(effect, StoreRows)]
        keys += [key for undone in self._undone.values() for key in undone]
        return sorted(dict.fromkeys(keys), key=self._deletion_order)

    def emit(self, effect: Any) -> None:
        """Produce an effect that does not depend on changes."""
        self._effects.append(effect)

    def put(self, key: K, value: V | None) -> None:
        """Change the state as part of a decision."""
        self._undo.append((key, self._group.apply(key, value)))
        self._rows.append((key, value))

    def commit(self, *then: Any) -> None:
        """Store the changes of a decision; the effects `then` follow when these and all earlier ones are stored.

        If they cannot be stored, answers among the effects become answers with an error, and other effects are dropped.
        """
        if self._rows:
            self._store(self._undo).then.extend(then)
        elif self._pending:
            self._pending[-1].then.extend(then)
        else:
            self._effects.extend(then)

    def downgrade(self, successor: Any, *answers: Answer) -> None:
        """Store a classic group and the deletion of all records. The state does not change.

        If that fails, all records are written again. No change may follow before the outcome is known.
        """
        self._ticket += 1
        keys = list(dict.fromkeys([*sorted(self._suspects, key=self._deletion_order), *self._group.record_keys()]))
        self._suspects = {}
        self._pending.append(_Change(self._ticket, [], keys, list(answers), is_downgrade=True))
        self._effects.append(StoreRows(tuple([(key, None) for key in keys]), self._ticket, successor))

    def _store(self, undo: list[tuple[K, V | None]]) -> _Change[K, V]:
        self._ticket += 1
        suspects = self._take_suspects()
        change = _Change(self._ticket, undo, [key for key, _ in suspects])
        self._pending.append(change)
        self._effects.append(StoreRows(tuple(suspects + self._rows), change.ticket))
        self._rows, self._undo = [], []
        return change

    def stored(self, ticket: int, error: ErrorCode) -> bool:
        """Handle the outcome of a `StoreRows`. Returns whether changes were undone."""
        if ticket in self._undone:
            self._suspects |= self._undone.pop(ticket)
            if error is ErrorCode.NONE:
                self._correct()
            return False
        change = next((each for each in self._pending if each.ticket == ticket), None)
        if change is None:
            return False
        if error is not ErrorCode.NONE:
            self._revert(change, error)
            return True
        change.is_stored = True
        while self._pending and self._pending[0].is_stored:
            self._effects.extend(self._pending.popleft().then)
        return False

    def _revert(self, failed: _Change[K, V], error: ErrorCode) -> None:
        """Undo a change and all later ones."""
        must_correct = False
        while self._pending and self._pending[-1].ticket >= failed.ticket:
            change = self._pending.pop()
            for key, value in reversed(change.undo):
                self._group.apply(key, value)
            keys = dict.fromkeys([*change.corrected, *[key for key, _ in change.undo]])
            self._suspects |= keys
            if change is failed or change.is_stored:
                must_correct |= change.is_stored or not change.is_correction
            else:  # corrected now, since the log may end before its outcome, and again afterwards
                self._undone[change.ticket] = keys
            self._effects.extend(_failed(change.then, error))
        if must_correct:
            self._correct()

    def _correct(self) -> None:
        """Write the current values of keys with undone records that may be in the log."""
        self._store([]).is_correction = True

    def _take_suspects(self) -> list[tuple[K, V | None]]:
        """Return the current values of keys that may be wrong in the log, in an order in which Kafka can read them."""
        if not self._suspects:
            return []
        current: dict[K, V | None] = dict.fromkeys(self._suspects)
        current.update({key: value for key, value in self._group.rows() if key in current})
        self._suspects = {}
        deleted = sorted([key for key, value in current.items() if value is None], key=self._deletion_order)
        return [
            *[(key, None) for key in deleted],
            *[(key, value) for key, value in current.items() if value is not None],
        ]

    def forget(self, waiter: Waiter) -> None:
        """Drop the pending answer to a client that has disconnected."""
        for change in self._pending:
            change.then = [each for each in change.then if not isinstance(each, Answer) or each.waiter is not waiter]

    def fail(self, error: ErrorCode) -> None:
        """Answer all waiting clients with an error."""
        for change in self._pending:
            self._effects.extend(_failed(change.then, error))
        self._pending.clear()
        self._undone.clear()
