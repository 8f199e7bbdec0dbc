"""Data directories of leaders and followers of older Kafka versions. See tests/fixtures/kafka/README.md."""

from interop.generate_followers import BATCHES, FIRST_MS, FIXTURES, RECORDS, TOPIC, VERSIONS

__all__ = [
    "BATCHES",
    "DIRECTORIES",
    "FIRST_MS",
    "FIXTURES",
    "INDEXES",
    "NODES",
    "OLD_RULE",
    "RECORDS",
    "SEGMENT",
    "TOPIC",
]

#: Directory to its node's id.
NODES = {"leader": 1, "follower": 2}
DIRECTORIES = tuple(f"{version}/{node}" for version in VERSIONS for node in NODES)
SEGMENT = f"{0:020}"
INDEXES = (".index", ".timeindex")
#: Those with an entry per append in the offset index. The follower of 3.9.1 wrote what its leader did.
OLD_RULE = ("3.7.2/follower", "3.9.0/follower", "4.0.0/follower")
