"""The known differences, each with its reason. A full run reports entries that it no longer finds.

`docs/kafka-compatibility.md` describes differences that a client or an administrator could notice. For texts (error
messages), only their presence is compared.
"""

from interop.compare.difference import MISSING, Expected
from interop.compare.normal import TEXT

NO_TOPIC_ID = bytes(16)
_WHY = "warmlog explains the error, Kafka has only the code"
_FAILED = "Kafka fails with UNKNOWN_SERVER_ERROR, warmlog names the error"
_ELR = "with eligible leader replicas, Kafka sets min.insync.replicas for the whole cluster"
_AS_GIVEN = "Kafka returns the text as given, warmlog the value"
_CUT = "a cut-off batch is corrupt, and clients send it again; Kafka does not consider it a batch"
_UNSAFE = "Kafka stores batches that readers or compaction fail on; see docs/formats.md"

EXPECTED: list[Expected] = [
    # -- everywhere --
    Expected("*", "*.error_message", _WHY, kafka=None, warmlog=TEXT),
    Expected("*", "*.config_source", _ELR, kafka=3, warmlog=5),
    Expected(
        "*",
        "DeleteTopics.responses.topic_id",
        "the id of a topic requested by name is not returned: no client reads it",
        warmlog=NO_TOPIC_ID,
    ),
    Expected(
        "*",
        "Produce.responses.partition_responses.log_append_time_ms",
        "Kafka answers a duplicate with its largest timestamp, which clients mistake for an append time",
        warmlog=-1,
    ),
    # -- the node and its features --
    Expected(
        "cluster/versions*",
        "ApiVersions.*_features",
        "the other features belong to groups that are not served",
        warmlog=MISSING,
    ),
    Expected(
        "cluster/versions*",
        "ApiVersions.supported_features.min_version",
        "the metadata has only one level, so no downgrade is possible",
        kafka=7,
        warmlog=33,
    ),
    Expected(
        "cluster/feature *",
        "UpdateFeatures.results.error_message",
        "Kafka has a text even with error code 0",
        kafka=TEXT,
        warmlog=None,
    ),
    Expected(
        "cluster/*coordinator*",
        "FindCoordinator.error_message",
        "Kafka has a text even with error code 0",
        kafka=TEXT,
        warmlog=None,
    ),
    Expected(
        "cluster/partitions *",
        "DescribeTopicPartitions.topics.topic_authorized_operations",
        "Kafka omits them if the cursor is past the last partition",
        kafka=-(1 << 31),
    ),
    # -- topics --
    Expected(
        "topics/create with no time",
        "CreateTopics.topics*",
        "Kafka times out with a timeout of 0, which no client sends; here the response waits for no other node",
    ),
    Expected(
        "topics/create with preallocate*", "CreateTopics.topics.configs.value", _AS_GIVEN, kafka="TRUE", warmlog="true"
    ),
    Expected(
        "topics/create with retention.bytes*",
        "CreateTopics.topics.configs.value",
        _AS_GIVEN,
        kafka=" 10 ",
        warmlog="10",
    ),
    Expected(
        "topics/create with min.cleanable*",
        "CreateTopics.topics.configs.value",
        _AS_GIVEN,
        kafka=".5",
        warmlog="0.5",
    ),
    Expected(
        "topics/delete by an id twice",
        "DeleteTopics.responses",
        "Kafka names the topic by its id alone, warmlog by its name",
    ),
    # -- settings --
    Expected(
        "configs/describe a topic with synonyms",
        "DescribeConfigs.results.configs.synonyms",
        "warmlog lists all settings that a value can come from",
        kafka=MISSING,
    ),
    Expected(
        "configs/describe the broker's node.id",
        "DescribeConfigs.results.configs*source",
        "a setting given at startup with its default counts as the default",
        kafka=4,
        warmlog=5,
    ),
    Expected(
        "configs/describe the broker's log.cleaner.threads",
        "DescribeConfigs.results.configs.read_only",
        "the cleaner's threads are only started once",
        kafka=False,
        warmlog=True,
    ),
    Expected(
        "configs/alter by no operation", "IncrementalAlterConfigs.responses.error_code", _FAILED, kafka=-1, warmlog=42
    ),
    Expected(
        "configs/alter broker * no.such*",
        "IncrementalAlterConfigs.responses.error_code",
        "an unknown setting is refused; Kafka keeps it, for plugins",
        kafka=0,
        warmlog=42,
    ),
    Expected("configs/replace one twice", "AlterConfigs.*", "Kafka fails and never responds"),
    Expected(
        "sequences/*: config * bad",
        "IncrementalAlterConfigs.responses.error_code",
        "for a bad value of a missing topic, the missing topic is reported",
        kafka=40,
        warmlog=3,
    ),
    # -- batches, and their producers --
    Expected("produce/null", "Produce.*", "Kafka fails and never responds"),
    *[
        Expected(f"produce/{label}", "Produce.responses.partition_responses.error_code", _CUT, kafka=87, warmlog=2)
        for label in ("with a length too great", "cut short", "a header alone", "half a header")
    ],
    *[
        Expected(
            f"produce/{prefix}{label}",
            f"{api}.*",
            "Kafka cuts off bytes that are not a whole batch; see docs/formats.md",
        )
        for label in ("with bytes behind", "with half a batch behind")
        for prefix, api in (("", "Produce"), ("what is stored of: ", "Fetch"))
    ],
    *[Expected(f"produce/resealed with {label}", "Produce.*", _FAILED) for label in ("codec 7", "codec gzip")],
    *[
        Expected(f"produce/{prefix}resealed with {label}", f"{api}.*", _UNSAFE)
        for label in ("log append time", "a delete horizon")
        for prefix, api in (("", "Produce"), ("what is stored of: ", "Fetch"))
    ],
    Expected(
        "produce/one good, one bad",
        "Produce.responses.partition_responses.*",
        "Kafka refuses a whole request if the data of one partition is not a batch; here the others are stored",
    ),
    Expected(
        "produce/one partition twice",
        "Produce.responses.partition_responses",
        "Kafka silently drops the first of two entries for one partition; here both are stored and answered",
        kafka=MISSING,
    ),
    Expected(
        "producers/a negative epoch",
        "Produce.responses.partition_responses.error_code",
        "a negative epoch is refused before it is compared with the producer's",
        kafka=47,
        warmlog=87,
    ),
    Expected("producers/a producer without epoch", "Produce.*", _UNSAFE),
    Expected(
        "producers/producers of none",
        "DescribeProducers.topics",
        "a topic without partitions in the request is not answered",
        warmlog=MISSING,
    ),
    Expected("transactions/an old epoch", "WriteTxnMarkers.*error_code", _FAILED, kafka=-1, warmlog=42),
    Expected(
        "transact*/*",
        "Produce.responses.partition_responses.error_code",
        "for a batch without its transactional id and an unknown topic id, the missing topic is reported",
        kafka=53,
        warmlog=100,
    ),
    # -- offsets, fetches, groups --
    Expected("offsets/isolation 2", "ListOffsets.topics.partitions.error_code", _FAILED, kafka=-1, warmlog=42),
    Expected("fetch/isolation *", "Fetch.*error_code", _FAILED, kafka=-1, warmlog=42),
    Expected(
        "fetch/as replica *",
        "Fetch.responses.partitions.current_leader.*",
        "a standalone broker names no leader (KIP-951), since there is no other one",
        warmlog=-1,
    ),
    Expected(
        "fetch/isolation *",
        "Fetch.responses",
        "warmlog repeats the error for each partition, which versions before 7 need",
        kafka=MISSING,
    ),
    Expected("fetch/negative bytes*", "Fetch.responses.partitions.error_code", _FAILED, kafka=-1, warmlog=4),
    Expected(
        "races/fetch of a deleted topic",
        "Fetch.responses.partitions.aborted_transactions",
        "an empty list with every error of an unknown partition; Kafka has null if it was known before",
        kafka=None,
        warmlog=[],
    ),
    Expected(
        "streams-*/describe *",
        "StreamsGroupDescribe.groups.topology.subtopologies.*.partitions",
        "Kafka shows the partitions that it decided for internal topics once a later change is stored",
        kafka=0,
    ),
    Expected(
        "streams-groups/beat join with epoch -1",
        "StreamsGroupHeartbeat.error_code",
        _FAILED,
        kafka=-1,
        warmlog=131,
    ),
    Expected(
        "groups/offsets of none",
        "OffsetFetch.*topics",
        "a topic without partitions in the request is not answered",
        warmlog=MISSING,
    ),
    Expected(
        "*groups/describe one twice",
        "*Describe*.groups",
        "a group named twice is described once, so that a short request gets no endless response",
        warmlog=MISSING,
    ),
]
