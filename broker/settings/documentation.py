"""What each setting means, in a sentence or two: for clients that ask, and for docs/settings.md.

Owns: the texts. A broker's setting that stands behind a topic's says what that one says. Must not know: values.
"""

from collections.abc import Mapping

from broker.settings.topics import TOPIC_SETTINGS

_NO_REMOTE = "There is no remote storage here: "
_ONE_REPLICA = "A partition has one replica here: "

TOPIC_TEXTS: Mapping[str, str] = {
    "cleanup.policy": "What happens to old segments: delete drops them by age and size, compact keeps the latest record"
    " of each key, both do both, and an empty list keeps everything.",
    "compression.gzip.level": "How hard gzip tries where compression.type is gzip; -1 is its usual level.",
    "compression.lz4.level": "How hard lz4 tries where compression.type is lz4.",
    "compression.type": "The codec in which batches are stored: producer keeps the one they came in, any other makes"
    " the broker compress them anew where theirs differs.",
    "compression.zstd.level": "How hard zstd tries where compression.type is zstd.",
    "delete.retention.ms": "How long a compacted topic keeps a tombstone, so that readers that lag still see it.",
    "file.delete.delay.ms": "How long the files of a deleted segment or topic stay on the disk.",
    "flush.messages": "A log is synced to the disk when an append makes it so many records that are not synced yet;"
    " that append is acknowledged after the sync. 1 syncs every append, and readers see nothing that is not synced.",
    "flush.ms": "A log that has records which are not synced is synced to the disk when its last sync is so long ago.",
    "follower.replication.throttled.replicas": _ONE_REPLICA + "there are no followers to hold back.",
    "index.interval.bytes": "How many bytes of log lie between two entries of an index: fewer find a position faster"
    " and make larger indexes.",
    "leader.replication.throttled.replicas": _ONE_REPLICA + "there are no followers to hold back.",
    "local.retention.bytes": _NO_REMOTE + "retention.bytes alone counts.",
    "local.retention.ms": _NO_REMOTE + "retention.ms alone counts.",
    "max.compaction.lag.ms": "The longest time that a record of a compacted topic may wait for compaction.",
    "max.message.bytes": "The largest batch that may be appended, as it is stored.",
    "message.timestamp.after.max.ms": "How far ahead of the broker's clock the timestamp of a record may be.",
    "message.timestamp.before.max.ms": "How far behind the broker's clock the timestamp of a record may be.",
    "message.timestamp.type": "Whether records keep the time their producer gave them (CreateTime) or get that of their"
    " append (LogAppendTime).",
    "min.cleanable.dirty.ratio": "The part of a log that must not have been compacted yet before compaction is worth"
    " its while.",
    "min.compaction.lag.ms": "The least time that a record stays as it is before compaction may drop it.",
    "min.insync.replicas": "How many replicas must have an append with acks=all. There is one replica: with more than 1"
    " such appends are refused.",
    "preallocate": "Whether a new segment's file takes its full size on the disk at once.",
    "remote.log.copy.disable": _NO_REMOTE + "nothing is copied to it.",
    "remote.log.delete.on.disable": _NO_REMOTE + "nothing is deleted from it.",
    "remote.storage.enable": _NO_REMOTE + "segments stay where they are.",
    "retention.bytes": "How large a partition may grow before its oldest segments go; -1 sets no bound.",
    "retention.ms": "How old a segment's latest record may get before the segment goes; -1 keeps them for ever.",
    "segment.bytes": "The size at which a segment is closed and a new one begun.",
    "segment.index.bytes": "How large an index may grow; a full one closes its segment.",
    "segment.jitter.ms": "By how much, at random, segments are closed earlier than segment.ms, so that logs do not do"
    " it all at once.",
    "segment.ms": "The age at which a segment is closed even if it is not full, measured by its records' timestamps.",
    "unclean.leader.election.enable": _ONE_REPLICA + "nobody else could lead it.",
}

BROKER_TEXTS: Mapping[str, str] = {
    "advertised.listeners": "The addresses that clients are told to come back to, as kafka://HOST:PORT,native://..."
    " Where a listener is not named, a client is told the address at which it arrived.",
    "auto.create.topics.enable": "Whether a topic is created when it is first used.",
    "connections.max.idle.ms": "How long a connection may be silent before it is closed.",
    "delete.topic.enable": "Whether topics can be deleted.",
    "fetch.max.bytes": "The most that one fetch is answered with.",
    "group.initial.rebalance.delay.ms": "How long a new group waits for more members before it first assigns"
    " partitions.",
    "group.max.session.timeout.ms": "The longest session timeout that a member of a group may ask for.",
    "group.max.size": "How many members a group may have.",
    "group.min.session.timeout.ms": "The shortest session timeout that a member of a group may ask for.",
    "log.cleaner.backoff.ms": "How long the cleaner rests when there is nothing to compact.",
    "log.cleaner.dedupe.buffer.size": "The memory in which the cleaner keeps the latest offset of each key.",
    "log.cleaner.enable": "Whether compacted topics are compacted.",
    "log.cleaner.io.buffer.load.factor": "How full the memory for offsets of keys may get: a fuller one takes more keys"
    " at a time and looks longer for each.",
    "log.cleaner.io.buffer.size": "The memory through which the cleaner reads and writes.",
    "log.cleaner.io.max.bytes.per.second": "How much the cleaner may read and write in a second.",
    "log.cleaner.threads": "How many logs are compacted at a time.",
    "log.dir": "Stands in for log.dirs where that is not set.",
    "log.dirs": "The data directories, separated by commas. The first has the metadata.",
    "log.flush.offset.checkpoint.interval.ms": "How often it is written down how far each log has been synced.",
    "log.flush.scheduler.interval.ms": "How often logs are looked at for what flush.ms asks to be synced; it stands in"
    " for log.flush.interval.ms where that is not set. Where it is not set itself, they are looked at every second, or"
    " more often for a smaller flush.ms.",
    "log.initial.task.delay.ms": "How long after the start retention and compaction begin.",
    "log.retention.check.interval.ms": "How often retention looks for what is too old or too much.",
    "log.retention.hours": "Stands in for log.retention.ms, in hours, where neither that nor .minutes is set.",
    "log.retention.minutes": "Stands in for log.retention.ms, in minutes, where that is not set.",
    "log.roll.hours": "Stands in for log.roll.ms, in hours, where that is not set.",
    "log.roll.jitter.hours": "Stands in for log.roll.jitter.ms, in hours, where that is not set.",
    "max.connections": "How many connections each listener keeps; further ones are refused.",
    "max.incremental.fetch.session.cache.slots": "How many incremental fetch sessions are kept.",
    "node.id": "The id of this broker.",
    "num.partitions": "How many partitions a topic gets when nobody says.",
    "num.recovery.threads.per.data.dir": "How many threads recover logs after an unclean stop, for each directory.",
    "offset.metadata.max.bytes": "The longest text that may be committed with an offset.",
    "offsets.commit.timeout.ms": "How long a commit of offsets may take before it is answered with an error.",
    "offsets.retention.check.interval.ms": "How often committed offsets are looked through for those to forget.",
    "offsets.retention.minutes": "How long the offsets of a group without members are kept.",
    "offsets.topic.num.partitions": "How many partitions __consumer_offsets gets when it is created.",
    "offsets.topic.segment.bytes": "The segment size of __consumer_offsets.",
    "producer.id.expiration.check.interval.ms": "How often idle producers are looked for.",
    "producer.id.expiration.ms": "After how long without an append an idempotent producer's sequence is forgotten.",
    "queued.max.request.bytes": "How many bytes of large requests may be received and not yet answered; -1 sets no"
    " bound.",
    "replica.alter.log.dirs.io.max.bytes.per.second": "How fast logs are copied that move to another data directory.",
    "socket.listen.backlog.size": "How many connections may wait to be accepted.",
    "socket.receive.buffer.bytes": "The receive buffer of each connection; -1 leaves it to the system.",
    "socket.request.max.bytes": "The longest request.",
    "socket.send.buffer.bytes": "The send buffer of each connection; -1 leaves it to the system, but for peers on the"
    " same machine, which get 256 KiB.",
    "warmlog.connection.inflight.requests": "How many requests of one connection may wait for their answers.",
    "warmlog.container": "Whether the broker runs in a container, so that clients may come through a port of the host.",
    "warmlog.gate": "How the broker asks whether what it is to send or to search is in memory: cachestat (Linux 6.5),"
    " nowait, or auto, the first that works; with off it does not ask, and a fetch from a slow disk holds up all.",
    "warmlog.gate.ahead.bytes": "How far ahead of what a consumer is sent its log is read from the disk.",
    "warmlog.gate.drop.passed": "Whether what was read from the disk for consumers that lag is dropped from memory"
    " when the last of them has passed it.",
    "warmlog.gate.piece.bytes": "How much is read from the disk for one consumer before the next one has its turn.",
    "warmlog.gate.threads": "How many threads read what is not in memory.",
    "warmlog.disk.reserve.bytes": "How much of each data directory's file system is kept for deletions, groups and"
    " recovery when it is full; -1 keeps 16 MiB or 2 %, whichever is less.",
    "warmlog.index.search": "How an index is searched: warm looks at its end first, plain is binary search.",
    "warmlog.loop.stall.log.ms": "What holds the event loop for longer is logged; 0 looks at nothing.",
    "warmlog.metrics.partitions": "Whether offsets and sizes of every partition are among the metrics: a series each.",
    "warmlog.loop.write.max.bytes": "Larger writes are made by a thread beside the loop.",
    "warmlog.open.files": "How many log and index files are held open; -1 takes half of what the process may open.",
    "warmlog.producers.max": "How many idempotent producers all partitions remember together. When they come close to"
    " it, those idle longest are forgotten; where none is idle for long enough, new ones are refused.",
    "warmlog.producers.min.idle.ms": "How long an idempotent producer must be idle before it is forgotten to make room:"
    " longer than any client keeps trying to deliver a batch (delivery.timeout.ms).",
    "warmlog.records.walk": "Whether records are checked on append; compressed batches are decompressed for it.",
    "warmlog.slow.peer.timeout.ms": "How long a peer may take to read a piece of its reply.",
    "warmlog.stop.timeout.ms": "How long a stop waits for the requests that were received.",
}

_TOPIC_BEHIND = {setting.broker: name for name, setting in TOPIC_SETTINGS.items()}


def documentation_of(name: str) -> str | None:
    """What a setting of a topic or of the broker means; None for one that nobody has described."""
    text = TOPIC_TEXTS.get(name) or BROKER_TEXTS.get(name)
    if text is None and name in _TOPIC_BEHIND:
        topic_name = _TOPIC_BEHIND[name]
        text = f"For topics that have no {topic_name} of their own. {TOPIC_TEXTS[topic_name]}"
    return text
