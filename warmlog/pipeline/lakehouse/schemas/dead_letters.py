"""Write records that do not fit a table to a dead-letter topic, with headers that give their origin and the reason.

A task writes the dead letters of its records, acknowledged by all in-sync replicas, before the commit that omits these
records. A repeated task writes them again, so each letter is stored at least once. Headers have the names of KIP-1191,
so that `warmlog share dead-letters` and `redrive` can read them.

Source: org.apache.kafka.server.share.dlq.ShareGroupDLQStateManager.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.errors import PipelineError, UnavailableError

if TYPE_CHECKING:
    from warmlog.client import Client

PREFIX = "__dlq.errors."
Headers = tuple[tuple[str, bytes | None], ...]


class Letter(NamedTuple):
    """A record that does not fit, and the reason."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterTopic:
    """The topic to which letters are written."""

    topic: str
    brokers: Brokers

    def check(self) -> None:
        """Raise PipelineError if letters cannot be written."""
        with LetterWriter(self) as writer:
            writer.open()


class LetterWriter:
    """Writes letters; a context manager. It connects for the first letter. Methods raise PipelineError."""

    def __init__(self, target: DeadLetterTopic | None) -> None:
        self._target = target
        self._client: Client | None = None
        self._partitions = 0

    def open(self) -> None:
        """Connect, and read the topic's number of partitions."""
        from warmlog.client import Client, UnknownTopicError, WarmlogError
        from warmlog.client.settings import Settings

        assert self._target is not None, "rules without a dead-letter topic have no letters"
        name, brokers = self._target.topic, self._target.brokers
        settings = brokers.connecting(Settings())
        given = {each.name: getattr(settings, each.name) for each in fields(settings)}
        client = Client(brokers.addresses, **given)
        try:
            self._client = client.__enter__()
            self._partitions = self._client.topic(name, auto_create=False).partitions
        except UnknownTopicError as error:
            raise PipelineError(f"dead-letter topic {name} does not exist: create it") from error
        except WarmlogError as error:
            kind = UnavailableError if error.is_retriable else PipelineError
            raise kind(f"dead-letter topic {name}: {error.message}") from error

    def write(self, letters: Sequence[Letter]) -> None:
        """Write letters, and wait until they are stored."""
        from warmlog.client import Message, WarmlogError

        if self._client is None:
            self.open()
        assert self._client is not None, "it was just opened"
        assert self._target is not None, "it was just opened"
        messages = [
            Message(each.value, each.key, headers_of(each), partition=each.partition % self._partitions)
            for each in letters
        ]
        try:
            self._client.produce_many(self._target.topic, messages)
        except WarmlogError as error:
            kind = UnavailableError if error.is_retriable else PipelineError
            raise kind(f"dead-letter topic {self._target.topic}: {error.message}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.__exit__(kind, error, traceback)


def headers_of(letter: Letter) -> Headers:
    """Return the headers of a letter: those of the record, and those of Kafka's dead letters."""
    texts = {
        "topic": letter.topic,
        "partition": str(letter.partition),
        "offset": str(letter.offset),
        "message": letter.reason,
    }
    own = tuple((name, value) for name, value in letter.headers if not name.startswith(PREFIX))
    return (*own, *((f"{PREFIX}{name}", text.encode()) for name, text in texts.items()))
