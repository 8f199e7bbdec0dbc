"""Describe each setting in a sentence or two, for DescribeConfigs and docs/settings.md, and their combined effect.

A broker setting that is the default of a topic setting has that setting's text.
"""

from collections.abc import Mapping

from warmlog.broker.settings.groups.checks import TEXTS as GROUP_TEXTS
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.topics import TOPIC_SETTINGS
from warmlog.protocol.records.record import MAX_INT64

_NO_REMOTE = "There is no tiered storage: "
_THROTTLED = "Replicas, as PARTITION:BROKER separated by commas or * for all, to which "

TOPIC_TEXTS: Mapping[str, str] = {
    "cleanup.policy": "What to do with old segments: delete removes them by age and size, compact keeps the latest"
    " record of each key. Both can be given; an empty list keeps everything.",
    "compression.gzip.level": "Level used if compression.type is gzip; -1 is gzip's default.",
    "compression.lz4.level": "Level used if compression.type is lz4.",
    "compression.type": "Codec of stored batches. producer keeps the producer's codec; any other value recompresses"
    " batches that use another one.",
    "compression.zstd.level": "Level used if compression.type is zstd.",
    "delete.retention.ms": "How long a compacted topic keeps a tombstone, so that slow readers still see it.",
    "errors.deadletterqueue.group.enable": "Whether share groups may write dead letters to the topic.",
    "file.delete.delay.ms": "How long the files of a deleted segment or topic are kept on disk.",
    "flush.messages": "Flush a log (fsync) when an append brings its unflushed records to this number, and "
    "acknowledge"
    " that append after the flush. 1 flushes every append, and consumers see only what is flushed.",
    "flush.ms": "Maximum time before unflushed records are flushed (fsync).",
    "follower.replication.throttled.replicas": _THROTTLED + "follower.replication.throttled.rate applies.",
    "index.interval.bytes": "Bytes of log between two entries of an index. Smaller values find a position faster and"
    " make larger indexes.",
    "leader.replication.throttled.replicas": _THROTTLED + "leader.replication.throttled.rate applies.",
    "local.retention.bytes": _NO_REMOTE + "only retention.bytes applies.",
    "local.retention.ms": _NO_REMOTE + "only retention.ms applies.",
    "max.compaction.lag.ms": "Maximum time that a record of a compacted topic may wait for compaction.",
    "max.decompressed.message.bytes": "Batches of more than 128 MiB decompressed are always refused.",
    "max.message.bytes": "Largest batch that may be appended, as it is stored.",
    "message.timestamp.after.max.ms": "How far a record's timestamp may be ahead of the broker's clock.",
    "message.timestamp.before.max.ms": "How far a record's timestamp may be behind the broker's clock.",
    "message.timestamp.type": "Whether records keep their producer's timestamp (CreateTime) or get the time of their"
    " append (LogAppendTime).",
    "min.cleanable.dirty.ratio": "Minimum share of a log that is not compacted yet before the log is compacted.",
    "min.compaction.lag.ms": "Minimum time before compaction may remove a record.",
    "min.insync.replicas": "Number of in-sync replicas that an append with acks=all needs; at most the "
    "replication factor. If it is not set, topics with three replicas or more have 2, and others have 1.",
    "preallocate": "Whether to allocate the full size of a new segment's file at once.",
    "remote.copy.lag.bytes": _NO_REMOTE + "nothing is copied.",
    "remote.copy.lag.ms": _NO_REMOTE + "nothing is copied.",
    "remote.log.copy.disable": _NO_REMOTE + "nothing is copied.",
    "remote.log.delete.on.disable": _NO_REMOTE + "nothing is deleted remotely.",
    "remote.storage.enable": _NO_REMOTE + "segments stay on local disks.",
    "retention.bytes": "Maximum size of a partition; beyond it the oldest segments are removed. -1 is unlimited.",
    "retention.ms": "Maximum age of a segment's latest record; older segments are removed. -1 is unlimited.",
    "segment.bytes": "Segment size at which the log rolls.",
    "segment.index.bytes": "Maximum size of an index; the log rolls when one is full.",
    "segment.jitter.ms": "Maximum random time by which a log rolls before segment.ms, so that not all logs roll at"
    " once.",
    "segment.ms": "Segment age, by its records' timestamps, at which the log rolls even if the segment is not full.",
}

BROKER_TEXTS: Mapping[str, str] = {
    "warmlog.cluster.etcd": "Endpoints of the etcd that the brokers of a cluster share, as http://HOST:PORT "
    "or https://HOST:PORT separated by commas; unix:///PATH is the store of `serve --nodes`. Empty: this broker is not "
    "part of a cluster.",
    "warmlog.cluster.etcd.ca.file": "PEM file with the CAs to trust for the certificates of etcd's members. "
    "Empty: those that the system trusts. A replaced file applies to new connections.",
    "warmlog.cluster.etcd.certificate.file": "PEM file with this broker's certificate and its chain, for an etcd that "
    "requires one (--client-cert-auth). A replaced file applies to new connections.",
    "warmlog.cluster.etcd.key.file": "PEM file with the private key of warmlog.cluster.etcd.certificate.file, not "
    "encrypted.",
    "warmlog.cluster.etcd.password.file": "File with the password of warmlog.cluster.etcd.user. A line break at its "
    "end is ignored. It is read again for each new token.",
    "warmlog.cluster.etcd.user": "User of etcd, if authentication is enabled there (etcdctl auth enable).",
    "warmlog.cluster.id": "Name of the cluster in etcd, and the cluster id that clients see.",
    "warmlog.cluster.mixed.security": "Whether this broker may start without an authorizer in a cluster whose other "
    "brokers have one. Whoever reaches it can then change all topics; for use while security is being removed.",
    "warmlog.cluster.lease.ms": "Time after which a broker that has not renewed its lease is replaced. One that other "
    "brokers cannot reach either is replaced after 2 s, one whose port refuses connections immediately.",
    "broker.rack": "Rack of this broker. Replicas of a partition are spread over racks.",
    "replica.selector.class": "Which replica a consumer reads from. Empty: the leader. "
    "org.apache.kafka.common.replica.RackAwareReplicaSelector: one in the consumer's rack (client.rack), if there is "
    "one (KIP-392).",
    "default.replication.factor": "Number of replicas of a topic that is created without one, in a cluster.",
    "unclean.leader.election.enable": "Whether a replica that lacks acknowledged records may become leader if "
    "no other one is alive: "
    "they are lost then.",
    "replica.lag.time.max.ms": "A follower that has not caught up with its leader for this time leaves the "
    "in-sync replicas.",
    "replica.fetch.max.bytes": "Maximum bytes of one partition in a follower's fetch; a larger batch is fetched whole.",
    "replica.fetch.min.bytes": "Minimum bytes for which a leader answers a follower's fetch before "
    "replica.fetch.wait.max.ms.",
    "replica.fetch.response.max.bytes": "Maximum bytes of a follower's fetch.",
    "replica.fetch.wait.max.ms": "Maximum time that a follower's fetch waits at the leader.",
    "leader.replication.throttled.rate": "Maximum rate, in bytes per second, at which this broker sends records to "
    "the followers of the replicas in leader.replication.throttled.replicas. Followers in sync are not held up.",
    "follower.replication.throttled.rate": "Maximum rate, in bytes per second, at which this broker fetches records "
    "for its replicas in follower.replication.throttled.replicas. Replicas in sync are not held up.",
    "num.replica.fetchers": "Number of fetchers for each leader that this broker follows.",
    "auto.leader.rebalance.enable": "Whether preferred replicas become leaders again automatically.",
    "leader.imbalance.check.interval.seconds": "How often leaders are compared with preferred replicas.",
    "leader.imbalance.per.broker.percentage": "Share of a broker's preferred partitions that others may lead "
    "before it becomes their leader "
    "again.",
    "controlled.shutdown.enable": "Whether a stopping broker first hands the leadership of its partitions to others.",
    "offsets.topic.replication.factor": "Number of replicas of __consumer_offsets, in a cluster.",
    "share.coordinator.state.topic.num.partitions": "Number of partitions of __share_group_state, used when it is"
    " created.",
    "share.coordinator.state.topic.replication.factor": "Number of replicas of __share_group_state, in a cluster.",
    "share.coordinator.state.topic.min.isr": "min.insync.replicas of __share_group_state, in a cluster.",
    "share.coordinator.state.topic.segment.bytes": "Segment size of __share_group_state.",
    "share.coordinator.state.topic.prune.interval.ms": "Time between two deletions of records of __share_group_state"
    " that are no longer needed.",
    "share.coordinator.snapshot.update.records.per.snapshot": "Number of updates of a share-partition's state after"
    " which all of it is written.",
    "share.coordinator.cold.partition.snapshot.interval.ms": "Write all of a share-partition's state if that has not"
    " happened for this time, so that older records can be deleted.",
    "share.coordinator.write.timeout.ms": "Longest time that a change of a share-partition's state waits for the"
    " replicas of __share_group_state.",
    "transaction.state.log.min.isr": "min.insync.replicas of __transaction_state, in a cluster.",
    "transaction.state.log.replication.factor": "Number of replicas of __transaction_state, in a cluster.",
    "add.partitions.to.txn.retry.backoff.max.ms": "Longest time that a produce request waits until the producer's"
    " previous transaction is completed.",
    "add.partitions.to.txn.retry.backoff.ms": "Pause between two attempts to add the partitions of a produce "
    "request to"
    " a transaction while the previous one is being completed.",
    "allow.everyone.if.no.acl.found": "Whether everyone may use a resource without an ACL.",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer checks every request by ACLs. "
    "Empty: every request is allowed.",
    "super.users": "Principals that may do everything, as TYPE:NAME separated by semicolons. Brokers of a cluster are "
    "such users, or have CLUSTER_ACTION on the cluster.",
    "advertised.listeners": "Addresses for clients to connect to, as NAME://HOST:PORT separated by commas, with names "
    "of listeners; without `listeners`, these are kafka and native. Clients of a listener that is not named get the "
    "address that they connected to.",
    "auto.create.topics.enable": "Whether to create a topic on its first use.",
    "inter.broker.listener.name": "Listener over which the brokers of a cluster connect to each other; every broker "
    "has one of this name. Empty: the first that speaks Kafka's protocol.",
    "listener.security.protocol.map": "Security protocols of listeners, as NAME:PROTOCOL separated by commas. A "
    "listener that is not named has the protocol of its name, and kafka and native have PLAINTEXT.",
    "sasl.enabled.mechanisms": "SASL mechanisms of listeners with SASL_PLAINTEXT or SASL_SSL, separated by commas: "
    "SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER.",
    "sasl.oauthbearer.jwks.endpoint.url": "Address (https:, http: or file:) of the JSON Web Key Set with the public "
    "keys that verify tokens of OAUTHBEARER.",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "How often these keys are read again.",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "Pause after a failed attempt to read them, which doubles with "
    "each.",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "Longest of these pauses, and the shortest time between two "
    "attempts for tokens with an unknown key.",
    "sasl.oauthbearer.expected.issuer": "The iss claim of tokens. Needed for OAUTHBEARER.",
    "sasl.oauthbearer.expected.audience": "Values separated by commas, one of which has to be in the aud claim of "
    "tokens. Needed for OAUTHBEARER.",
    "sasl.oauthbearer.clock.skew.seconds": "How far the clocks of the issuer and of the broker may differ.",
    "sasl.oauthbearer.sub.claim.name": "Claim of tokens with the name of the principal.",
    "sasl.oauthbearer.scope.claim.name": "Claim of tokens with scopes, which are checked for their form only.",
    "sasl.server.max.receive.size": "Maximum size of a request before a client has authenticated.",
    "connection.failed.authentication.delay.ms": "Minimum time from the beginning of a failed login to its answer.",
    "connections.max.reauth.ms": "How long a login is valid before the client has to authenticate again on its "
    "connection, which is closed otherwise. 0: no limit.",
    "sasl.mechanism.inter.broker.protocol": "SASL mechanism by which brokers log in to each other, where their "
    "listener has SASL.",
    "warmlog.inter.broker.user": "User as which this broker logs in to the others of its cluster.",
    "warmlog.inter.broker.password.file": "File with the password of warmlog.inter.broker.user in its first line. It "
    "is read for each connection.",
    "warmlog.sasl.oauthbearer.ca.file": "PEM file with the CAs of sasl.oauthbearer.jwks.endpoint.url. Empty: those of "
    "the system.",
    "warmlog.sasl.plain.without.tls": "Whether PLAIN and OAUTHBEARER may be enabled for SASL_PLAINTEXT, where "
    "passwords and tokens are sent in clear.",
    "delegation.token.secret.key": "Secret from which delegation tokens are made, the same for all brokers of a "
    "cluster. Empty: there are none.",
    "delegation.token.max.lifetime.ms": "Longest time for which a delegation token can be renewed.",
    "delegation.token.expiry.time.ms": "How long a delegation token is valid, and by how much a renewal extends that.",
    "delegation.token.expiry.check.interval.ms": "How often expired delegation tokens are removed.",
    "warmlog.http.security.protocol": "SSL encrypts HTTP, with the settings of TLS (ssl.keystore.location and "
    "others), which listener.name.http.ssl.… replaces.",
    "warmlog.http.authentication": "How clients of HTTP authenticate to read /metrics, separated by commas: basic "
    "(a user and a password), bearer (a token, see sasl.oauthbearer.…), certificate. Empty: not at all, and everyone "
    "may read it.",
    "warmlog.ui": "Whether HTTP serves the console at /ui, and its data at /api/v1. Without "
    "warmlog.http.authentication both answer this machine only, and nothing can be changed there.",
    "warmlog.http.authentication.without.tls": "Whether basic and bearer may be enabled where HTTP is not encrypted.",
    "warmlog.sasl.timeout.ms": "Close a connection that has not authenticated after this time, TLS handshake included.",
    "listeners": "Listeners, as NAME://HOST:PORT separated by commas: an empty host is every address, port 0 a free "
    "port. Empty: kafka and native, at the addresses of --kafka and --native, which it replaces.",
    "ssl.cipher.suites": "Cipher suites of TLS 1.2, separated by commas, by OpenSSL's or Java's names. Empty: "
    "OpenSSL's choice. Those of TLS 1.3 are always enabled.",
    "ssl.client.auth": "Whether clients present a certificate: none, requested (a presented one has to be valid) or "
    "required.",
    "ssl.enabled.protocols": "Versions of TLS, separated by commas: TLSv1.2, TLSv1.3.",
    "ssl.key.password": "Password of an encrypted private key.",
    "ssl.keystore.certificate.chain": "Certificate and its chain in PEM format, instead of ssl.keystore.location.",
    "ssl.keystore.key": "Private key of ssl.keystore.certificate.chain in PEM format.",
    "ssl.keystore.location": "PEM file with the private key, the certificate and its chain. A replaced file applies to "
    "new connections after at most 5 s.",
    "ssl.keystore.type": "Format of the key store: PEM.",
    "ssl.principal.mapping.rules": "How the subject of a client's certificate becomes a principal: DEFAULT, or "
    "RULE:PATTERN/REPLACEMENT/[LU], separated by commas; the first that applies wins.",
    "ssl.truststore.certificates": "CAs of clients' certificates in PEM format, instead of ssl.truststore.location.",
    "ssl.truststore.location": "PEM file with the CAs of clients' certificates. A replaced file applies to new "
    "connections after at most 5 s.",
    "ssl.truststore.type": "Format of the trust store: PEM.",
    "warmlog.native.listener.names": "Names of listeners that speak the native protocol; the others speak Kafka's.",
    "connections.max.idle.ms": "Close a connection after this time without requests.",
    "delete.topic.enable": "Whether topics can be deleted.",
    "errors.deadletterqueue.auto.create.topics.enable": "Whether the dead-letter topic of a share group is created when"
    " the first dead letter is written.",
    "errors.deadletterqueue.topic.name.prefix": "Required prefix of the names of dead-letter topics; empty: no"
    " restriction.",
    "fetch.max.bytes": "Maximum size of a reply to a fetch.",
    **GROUP_TEXTS,
    "group.initial.rebalance.delay.ms": "How long a new group waits for more members before partitions are assigned"
    " for the first time.",
    "group.max.session.timeout.ms": "Longest session timeout that a group member may request.",
    "group.max.size": "Maximum number of members of a group.",
    "group.min.session.timeout.ms": "Shortest session timeout that a group member may request.",
    "log.cleaner.backoff.ms": "How long the cleaner waits when there is nothing to compact.",
    "log.cleaner.dedupe.buffer.size": "Memory for the cleaner's map from keys to their latest offsets.",
    "log.cleaner.enable": "Whether compacted topics are compacted.",
    "log.cleaner.io.buffer.load.factor": "How full the cleaner's map of keys may get. A fuller map compacts more keys"
    " in one pass, with more collisions.",
    "log.cleaner.io.buffer.size": "Size of the cleaner's buffers for reading and writing.",
    "log.cleaner.io.max.bytes.per.second": "Maximum rate at which the cleaner reads and writes.",
    "log.cleaner.threads": "Number of logs compacted at the same time.",
    "log.dir": "Data directory, used if log.dirs is not set.",
    "log.dirs": "Data directories, separated by commas. The first one also has the metadata.",
    "log.flush.offset.checkpoint.interval.ms": "Interval at which the recovery points of all logs are checkpointed.",
    "log.flush.scheduler.interval.ms": "Interval at which logs are checked for flush.ms; also the default of"
    " log.flush.interval.ms. If it is not set, logs are checked every second, or more often for a smaller flush.ms.",
    "log.initial.task.delay.ms": "How long after startup retention and compaction begin.",
    "log.retention.check.interval.ms": "Interval at which retention is checked.",
    "log.retention.hours": "Retention in hours, used if neither log.retention.ms nor log.retention.minutes is set.",
    "log.retention.minutes": "Retention in minutes, used if log.retention.ms is not set.",
    "log.roll.hours": "Roll time in hours, used if log.roll.ms is not set.",
    "log.roll.jitter.hours": "Roll jitter in hours, used if log.roll.jitter.ms is not set.",
    "max.connections": "Maximum number of connections of each listener; further ones are refused.",
    "quota.window.num": "Windows over which the rates of clients with quotas are measured, with the current one.",
    "controller.quota.window.num": "Number of windows for which controller_mutation_rate is saved up.",
    "controller.quota.window.size.seconds": "Length of each of these windows in seconds.",
    "quota.window.size.seconds": "Length of each of these windows in seconds; a pause for request time is no longer.",
    "max.connection.creation.rate": "Maximum number of new connections per second, of all listeners together and of "
    "each; further ones wait. Connections of other brokers on a listener of their own count there only.",
    "max.connections.per.ip.overrides": "The same for some addresses, as ADDRESS:NUMBER separated by commas.",
    "max.connections.per.ip": "Maximum number of connections of each address, of all listeners together; further ones "
    "are refused.",
    "max.incremental.fetch.session.cache.slots": "Maximum number of incremental fetch sessions.",
    "node.id": "ID of this broker. A broker of a cluster needs one.",
    "num.partitions": "Number of partitions of a new topic that is created without a number.",
    "num.recovery.threads.per.data.dir": "Number of threads for each data directory that recover logs after an "
    "unclean"
    " stop.",
    "offset.metadata.max.bytes": "Maximum size of the metadata committed with an offset.",
    "offsets.commit.timeout.ms": "Fail a commit of offsets that takes longer than this.",
    "offsets.retention.check.interval.ms": "Interval at which expired offsets are removed.",
    "offsets.retention.minutes": "How long the offsets of a group without members are kept.",
    "offsets.topic.num.partitions": "Number of partitions of __consumer_offsets, used when it is created.",
    "offsets.topic.segment.bytes": "Segment size of __consumer_offsets.",
    "producer.id.expiration.check.interval.ms": "Interval at which expired producers are removed.",
    "producer.id.expiration.ms": "Drop the state of an idempotent producer after this time without an append.",
    "queued.max.request.bytes": "Maximum total size of large requests that are received and not yet answered; -1 is"
    " unlimited.",
    "replica.alter.log.dirs.io.max.bytes.per.second": "Maximum rate at which logs are copied to another data"
    " directory.",
    "socket.listen.backlog.size": "Maximum number of connections waiting to be accepted.",
    "socket.receive.buffer.bytes": "Receive buffer of each connection; -1 leaves it to the operating system.",
    "socket.request.max.bytes": "Maximum size of a request.",
    "socket.send.buffer.bytes": "Send buffer of each connection; -1 leaves it to the operating system, except for"
    " peers on the same machine, which get 256 KiB.",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "Interval at which transactions that have "
    "timed out"
    " are aborted.",
    "transaction.max.timeout.ms": "Longest timeout that a producer may request for its transactions.",
    "transaction.partition.verification.enable": "Whether to check batches of producers that add partitions to their"
    " transactions themselves against the transaction before appending them (KIP-890).",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "Interval at which unused transactional ids are"
    " removed.",
    "transaction.state.log.num.partitions": "Number of partitions of __transaction_state, used when it is created.",
    "transaction.state.log.segment.bytes": "Segment size of __transaction_state.",
    "transactional.id.expiration.ms": "Remove a transactional id that has not been used for this time.",
    "warmlog.audit.file": "File of the audit log: logins, refused requests and changes as lines of JSON; empty: none.",
    "warmlog.audit.file.bytes": "Size from which the audit log begins another file; older ones get the suffixes .1, .2"
    " and so on.",
    "warmlog.audit.file.count": "Number of older files of the audit log that are kept.",
    "warmlog.audit.topic": "Whether events of the audit log are appended to the topic __warmlog_audit, too. Needs"
    " warmlog.audit.file, which has every event.",
    "warmlog.audit.topic.num.partitions": "Number of partitions of __warmlog_audit, used when it is created.",
    "warmlog.audit.topic.retention.bytes": "retention.bytes of __warmlog_audit, used when it is created: of each"
    " partition; -1: no limit.",
    "warmlog.audit.topic.retention.ms": "retention.ms of __warmlog_audit, used when it is created; -1: no limit.",
    "warmlog.audit.topic.segment.bytes": "Segment size of __warmlog_audit, used when it is created.",
    "warmlog.connection.inflight.requests": "Maximum number of unanswered requests of one connection.",
    "warmlog.connection.names.max": "Maximum number of new producers and transactional ids that one connection may"
    " introduce. The connections of an address may introduce a quarter of warmlog.producers.max and"
    " warmlog.transactional.ids.max within the minimum time for which these are kept.",
    "warmlog.container": "Whether the broker runs in a container, so that clients may connect through a "
    "published port"
    " of the host.",
    "warmlog.gate": "How to check whether data is in memory before sending or searching it: cachestat (Linux 6.5),"
    " nowait, or auto, the first that works. off: no check; a cold read blocks the event loop.",
    "warmlog.gate.ahead.bytes": "Read-ahead for a consumer whose data is not in memory.",
    "warmlog.gate.drop.passed": "Whether to evict data from memory that was read from the disk for slow consumers,"
    " once the last of them has consumed it.",
    "warmlog.gate.piece.bytes": "Bytes read from the disk for one consumer before the next one gets its turn.",
    "warmlog.gate.threads": "Number of threads that read data that is not in memory.",
    "warmlog.disk.reserve.bytes": "Space reserved in each data directory's file system for deletions, groups and"
    " recovery when it is full; -1 reserves 16 MiB or 2 %, whichever is less.",
    "warmlog.index.search": "How to search an index: warm tries its end first, plain is a binary search.",
    "warmlog.loop.stall.log.ms": "Tasks that hold the event loop longer than this are logged; 0 disables the check.",
    "warmlog.mirror.delete.topics": "Whether mirrored topics are deleted here after they were deleted at the source.",
    "warmlog.mirror.from": "Brokers of the cluster whose topics are mirrored, as HOST:PORT separated by commas; empty"
    " to mirror nothing. In a cluster, set it on every broker: each copies what it leads.",
    "warmlog.mirror.groups": "Regular expression (RE2) for the consumer groups whose committed offsets are copied"
    " from the mirrored cluster; empty to copy none.",
    "warmlog.mirror.interval.ms": "How often topics and committed offsets are compared with the mirrored cluster.",
    "warmlog.mirror.max.bytes.per.second": "Maximum rate at which this broker copies from the mirrored cluster; 0 for"
    " no limit.",
    "warmlog.mirror.security.protocol": "How to connect to the mirrored cluster: PLAINTEXT, SSL, SASL_PLAINTEXT or "
    "SASL_SSL.",
    "warmlog.mirror.ca.file": "PEM file with the CAs that sign the certificates of the mirrored cluster. Empty: the "
    "system's.",
    "warmlog.mirror.certificate.file": "PEM file with the certificate for the mirrored cluster, and its chain.",
    "warmlog.mirror.key.file": "PEM file with the private key of warmlog.mirror.certificate.file, not encrypted.",
    "warmlog.mirror.sasl.mechanism": "SASL mechanism by which the broker logs in to the mirrored cluster.",
    "warmlog.mirror.user": "User as which the broker logs in to the mirrored cluster.",
    "warmlog.mirror.password.file": "File with the password of warmlog.mirror.user in its first line. It is read for "
    "each connection.",
    "warmlog.mirror.token.file": "File with an access token in its first line, for OAUTHBEARER. It is read for each "
    "connection.",
    "warmlog.mirror.topics": "Regular expression (RE2) for the names of the topics that are mirrored.",
    "warmlog.share.states.memory.max.bytes": "Maximum memory for the delivery state of share groups that this broker"
    " keeps as share coordinator, in bytes; changes that need more are refused.",
    "warmlog.groups.memory.max.bytes": "Maximum memory for the members, assignments and committed offsets of consumer"
    " groups, in bytes; each principal may use a quarter of it, and so may the"
    " clients of each address that have no principal.",
    "warmlog.metrics.groups.max": "Maximum number of groups with metrics of their own, such as their lag: those with"
    " members and with the latest commits.",
    "warmlog.metrics.partitions": "Whether to export metrics for each partition, a series each.",
    "warmlog.loop.write.max.bytes": "Maximum size of a write made on the event loop; threads make larger ones. "
    "Writes above 64 KiB in the same turn share it.",
    "warmlog.open.files": "Maximum number of log and index files held open; -1 is half of the process's limit.",
    "warmlog.producers.max": "Maximum number of idempotent producers known to all partitions together. Close to it,"
    " those that are idle longest are dropped; if none is idle for long enough, new ones are refused.",
    "warmlog.producers.min.idle.ms": "Minimum idle time before a producer is dropped in favor of others. Must"
    " be longer than clients retry a batch (delivery.timeout.ms).",
    "warmlog.queued.max.reply.bytes": "Maximum total size of large replies that are encoded and not yet sent; -1 is"
    " unlimited.",
    "warmlog.records.walk": "Whether to validate the records of a batch on append; compressed batches are "
    "decompressed"
    " for it.",
    "warmlog.reply.max.bytes": "Maximum size of a reply, not counting the records of a fetch. Requests for more are"
    " refused with POLICY_VIOLATION.",
    "warmlog.slow.peer.bytes": "Close a connection whose peer sends a request, or reads a reply, at fewer bytes per"
    " second, once that has taken longer than warmlog.slow.peer.timeout.ms.",
    "warmlog.slow.peer.timeout.ms": "How long a peer may take to send a request or to read its reply, at any speed.",
    "warmlog.transaction.partitions.max": "Maximum number of partitions of a transaction. All open transactions"
    " together may have fifty times as many, and as many offsets to commit. More are refused with POLICY_VIOLATION.",
    "warmlog.transactional.ids.max": "Maximum number of transactional ids. Further ones are refused with"
    " POLICY_VIOLATION until some have expired (transactional.id.expiration.ms).",
    "warmlog.stop.timeout.ms": "How long a shutdown waits for received requests.",
}

_TOPIC_BEHIND = {setting.broker: name for name, setting in TOPIC_SETTINGS.items()}


def documentation_of(name: str) -> str | None:
    """Return the description of a setting of a topic or of the broker; None if it has none."""
    text = TOPIC_TEXTS.get(name) or BROKER_TEXTS.get(name)
    if text is None and name in _TOPIC_BEHIND:
        topic_name = _TOPIC_BEHIND[name]
        text = f"Default of {topic_name}. {TOPIC_TEXTS[topic_name]}"
    return text


def durability_sentence(settings: Settings) -> str:
    """Return a sentence, logged at startup, about the records that a power failure can lose with these settings."""
    if settings.log_flush_interval_messages == 1:
        return "power cut: loses nothing acknowledged (every append is synced before its reply)"
    bounds = []
    if settings.log_flush_interval_messages < MAX_INT64:
        bounds.append(f"{settings.log_flush_interval_messages} records a partition")
    if settings.flush_ms < MAX_INT64:
        bounds.append(f"{(settings.flush_ms + settings.flush_check_ms) / 1000:g} s of appends")
    if bounds:
        least = ", whichever is less" if len(bounds) > 1 else ""
        return f"power cut: can lose {' or '.join(bounds)}{least}; a crash of the process loses nothing"
    return (
        "power cut: can lose what the kernel has not written yet (usually the last 30 s);"
        " a crash of the process loses nothing"
        " (log.flush.interval.messages=1 syncs every append)"
    )
