"""Generated sequences of requests; a sequence with different responses is reduced to the necessary steps."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from interop.compare.difference import ENDED_EARLY, Difference, differences, unexpected
from interop.compare.expected import EXPECTED
from interop.compare.operations import OPERATIONS, Player
from interop.compare.run import ENDS, Pair
from interop.compare.session import Session, Step
from interop.compare.share_states import SHARE_STATES, ShareStatePlayer
from interop.compare.streams_members import STREAMS_MEMBERS, StreamsPlayer
from interop.compare.transacted import TRANSACTED, TransactionalPlayer


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of sequence: its operations and their player."""

    operations: st.SearchStrategy[tuple[Any, ...]]
    player: type[Player]
    min_steps: int
    max_steps: int


SEQUENCES = {
    "sequences": Kind(OPERATIONS, Player, 10, 24),
    "share-states": Kind(SHARE_STATES, ShareStatePlayer, 10, 40),
    "streams-members": Kind(STREAMS_MEMBERS, StreamsPlayer, 6, 16),
    "transacted": Kind(TRANSACTED, TransactionalPlayer, 20, 50),
}


def compare_sequences(pair: Pair, area: str, examples: int, number: int) -> str | None:
    """Play generated sequences to both brokers; return the first one that differs, shortened, with its differences."""
    kind = SEQUENCES[area]
    count = 0

    def disagreement(sequence: Sequence[Any]) -> list[Difference]:
        nonlocal count
        count += 1
        return unexpected(_played(pair, area, count, sequence), EXPECTED)

    def agree(sequence: list[Any]) -> None:
        if found := disagreement(sequence):
            raise _DisagreementError(sequence, found)

    limits = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    try:
        sequences = st.lists(kind.operations, min_size=kind.min_steps, max_size=kind.max_steps)
        seed(number)(limits(given(sequences)(agree)))()
    except _DisagreementError as error:
        sequence, found = _shortened(error.sequence, error.found, disagreement)
        return "\n".join(["a sequence is answered differently:", *[f"  {one}" for one in sequence], *map(str, found)])
    return None


def _shortened(
    sequence: list[Any], found: list[Difference], disagreement: Callable[[Sequence[Any]], list[Difference]]
) -> tuple[list[Any], list[Difference]]:
    """Remove every step not needed for the disagreement; lists with `min_steps` cannot be shrunk as far."""
    for place in range(len(sequence) - 1, -1, -1):
        without = sequence[:place] + sequence[place + 1 :]
        if without and (still := disagreement(without)):
            sequence, found = without, still
    return sequence, found


class _DisagreementError(Exception):
    """The responses to a sequence differ."""

    def __init__(self, sequence: list[Any], found: list[Difference]) -> None:
        super().__init__(f"{len(found)} differences")
        self.sequence = sequence
        self.found = found


def _played(pair: Pair, area: str, number: int, sequence: Sequence[Any]) -> list[Difference]:
    def play(place: int) -> list[Step]:
        return _play(SEQUENCES[area].player, pair.session(place, f"{area}{number}", "highest"), sequence)

    with ThreadPoolExecutor(2) as pool:
        kafka, warmlog = pool.map(play, (0, 1))
    pair.requests += len(kafka)
    return differences(area, "highest", kafka, warmlog)


def _play(kind: type[Player], session: Session, sequence: Sequence[Any]) -> list[Step]:
    try:
        player = kind(session)
        for place, operation in enumerate(sequence):
            player.play(place, *operation)
    except ENDS as error:
        session.note(ENDED_EARLY, f"{type(error).__name__}: {error}")
    finally:
        session.close()
    return session.steps
