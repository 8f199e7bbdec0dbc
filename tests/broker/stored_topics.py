"""The metadata of a broker that does not run, or of one without listeners."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

from warmlog.broker.cluster import topics
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.local.local_store import LocalStore
from warmlog.broker.cluster.local.lone_node import LoneNode
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.cluster.rules import Decision
from warmlog.broker.cluster.store import Outcome, StoreTransaction
from warmlog.broker.cluster.values import TopicState
from warmlog.broker.metadata.topic import Mirror, Topic
from warmlog.broker.partitions.appends.writer import Writer

NODE_ID = 1


class StoredTopics:
    """The topics in the metadata of a standalone broker."""

    def __init__(self, file: MetadataFile) -> None:
        self.file = file

    @property
    def image(self) -> ClusterImage:
        return self.file.image()

    def load(self) -> list[Topic]:
        return [topic.named(name) for name, topic in sorted(self.image.topics.items()) if topic.is_live]

    def deleting(self) -> list[str]:
        return [name for name, topic in sorted(self.image.topics.items()) if not topic.is_live]

    def create(self, *created: Topic) -> None:
        self._commit(topics.create_local(self.image, {topic.name: state_of(topic) for topic in created}))

    def grow(self, name: str, partitions: int) -> None:
        self._commit(topics.grow_local(self.image, name, partitions))

    def set_mirror(self, name: str, mirror: Mirror) -> None:
        self._commit(topics.set_mirror(self.image, name, mirror))

    def begin_deletion(self, *names: str) -> None:
        self._commit(topics.begin_local_deletion(self.image, names))

    def delete(self, *names: str) -> None:
        self._commit(topics.finish_local_deletion(self.image, names, (), NODE_ID))

    def _commit(self, decision: Decision) -> None:
        assert isinstance(decision, StoreTransaction), decision
        (outcome,) = self.file.store.commit([decision], ()).results
        assert isinstance(outcome, Outcome)
        assert outcome.succeeded


def state_of(topic: Topic) -> TopicState:
    return TopicState(id=topic.id, partitions=topic.partitions, configs=topic.configs, mirror=topic.mirror)


@contextmanager
def stored_topics(directory: Path, release_reserve: Callable[[], bool] = lambda: False) -> Iterator[StoredTopics]:
    """Open the metadata in a data directory."""
    with closing(MetadataFile(directory / "metadata.sqlite", NODE_ID, release_reserve=release_reserve)) as file:
        yield StoredTopics(file)


def lone_node(file: MetadataFile, writer: Writer | None = None) -> LoneNode:
    """Return a standalone broker with the store in a file."""
    node = LoneNode(LocalStore(file.store, kept_revisions=0), NODE_ID, file.contents(), Random(1))
    node.run_in = None if writer is None else writer.spawn
    return node
