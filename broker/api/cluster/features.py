"""Feature levels of the cluster (KIP-584).

A feature whose only level is 0 is not supported, and ApiVersions does not list it.
"""

from collections.abc import Mapping

from protocol.kafka.values import FeatureRange

FEATURES: Mapping[str, FeatureRange] = {
    feature.name: feature
    for feature in (
        FeatureRange(name="metadata.version", first=30, last=30, level=30),  # Kafka 4.3
        FeatureRange(name="eligible.leader.replicas.version", first=0, last=0, level=0),
        FeatureRange(name="group.version", first=0, last=0, level=0),  # consumer groups of KIP-848
        FeatureRange(name="kraft.version", first=0, last=0, level=0),  # changes of voters (KIP-853)
        FeatureRange(name="share.version", first=0, last=0, level=0),
        FeatureRange(name="streams.version", first=0, last=0, level=0),
        FeatureRange(name="transaction.version", first=0, last=0, level=0),
    )
}
SERVED_FEATURES = tuple(feature for feature in FEATURES.values() if feature.last > 0)
