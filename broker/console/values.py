"""The values that `/api/v1` returns as JSON. Their docstrings are the documentation; `/api/v1/schema` has the schema.

Times are in milliseconds since the epoch, sizes in bytes. Offsets are null where they are unknown.
"""

from typing import Any

from msgspec import Struct

from warmlog.protocol.explanation import Explanation


class Form(Struct, frozen=True, kw_only=True, gc=False):
    """The base of all values."""


class Problem(Form, frozen=True):
    """An error: Kafka's name of it where there is one, and a message for people."""

    error: str
    message: str


class HistogramForm(Form, frozen=True):
    """Durations since the broker's start: `counts[i]` of at most `bounds[i]` seconds, the last one above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]


class DiskForm(Form, frozen=True):
    """The file system of a data directory."""

    path: str
    size: int
    free: int


class TotalsForm(Form, frozen=True):
    """Totals of the broker; counts are since its start.

    `loop_faults` are page faults of the event loop by kind and operation; major ones waited for the disk. `loop_delay`
    is the delay of a timer on the event loop, `produce` the duration of produce requests.
    """

    topics: int
    partitions: int
    log_bytes: int
    unsynced_bytes: int
    under_replicated: int
    offline_partitions: int
    failed_logs: int
    cold_reads: int
    cold_read_bytes: int
    loop_faults: dict[str, int]
    loop_stalls: int
    loop_delay: HistogramForm
    produce: HistogramForm
    disks: tuple[DiskForm, ...]


class Status(Form, frozen=True):
    """The strip at the top of the page.

    `power_cut` says what a power cut can lose as configured; it needs DESCRIBE_CONFIGS on the cluster, `totals` need
    DESCRIBE, and they are null without it. `user` is null without authentication; then nothing can be changed.
    """

    version: str
    cluster_id: str
    node_id: int
    brokers: int
    now_ms: int
    user: str | None
    may_write: bool
    power_cut: str | None
    totals: TotalsForm | None


class UnsyncedForm(Form, frozen=True):
    """The first offset of a partition that has not been synced to disk."""

    partition: int
    offset: int


class TopicForm(Form, frozen=True):
    """A topic, as far as this broker has its logs: `here` of `partitions`.

    `records` are the offsets between log start and log end, of which compaction and transactions leave fewer records.
    `last_write_ms` is the newest modification of a log file. `unsynced` lists up to three partitions.
    """

    name: str
    partitions: int
    here: int
    internal: bool
    records: int
    size: int
    last_write_ms: int | None
    unsynced: tuple[UnsyncedForm, ...]
    unsynced_partitions: int


class TopicList(Form, frozen=True):
    """A page of topics; `total` match the filter."""

    topics: tuple[TopicForm, ...]
    total: int
    page: int
    page_size: int


class ResidencyForm(Form, frozen=True):
    """Pages of a topic's logs that are in the page cache, oldest segment of partition 0 first.

    A cell stands for `cell_pages` pages; the last has the rest. `files` were surveyed of `all_files`.
    """

    topic: str
    pages: int
    resident_pages: int
    cell_pages: int
    resident_cells: tuple[int, ...]
    files: int
    all_files: int


class ResidencyList(Form, frozen=True):
    """The residency of several topics."""

    topics: tuple[ResidencyForm, ...]


class FileForm(Form, frozen=True):
    """A file of a segment with its resident pages, as `warmlog log residency --json` reports them.

    `warm_from` is the first byte of the warm section, for an index that has one.
    """

    base_offset: int
    kind: str
    name: str
    size: int
    pages: int
    resident_pages: int
    cell_pages: int
    resident_cells: tuple[int, ...]
    warm_from: int | None


class SegmentForm(Form, frozen=True):
    """A segment: offsets [base_offset, next_offset)."""

    base_offset: int
    next_offset: int
    size: int
    offset_index_entries: int
    time_index_entries: int
    max_timestamp: int | None
    modified_ms: int
    active: bool


class ReplicaForm(Form, frozen=True):
    """A replica. `log_end_offset` and `lag` are as the leader sees them, from the latest fetch of the follower."""

    broker: int
    leads: bool
    in_sync: bool
    log_end_offset: int | None
    lag: int | None


class EpochForm(Form, frozen=True):
    """A leader epoch, and the first offset written in it."""

    epoch: int
    first_offset: int


class PartitionForm(Form, frozen=True):
    """A partition, and the files of its log on this broker: of up to `segments` newest segments of `all_segments`.

    Records below `flushed_offset` are synced to disk. `failure`: why the log rejects appends.
    """

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[ReplicaForm, ...]
    log_start_offset: int
    flushed_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    size: int
    failure: str | None
    epochs: tuple[EpochForm, ...]
    all_segments: int
    segments: tuple[SegmentForm, ...]
    files: tuple[FileForm, ...]
    page_size: int


class PartitionSummary(Form, frozen=True):
    """A partition of a topic. Offsets and sizes are null where this broker has no log of it."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_start_offset: int | None
    flushed_offset: int | None
    high_watermark: int | None
    log_end_offset: int | None
    size: int | None
    failure: str | None


class ConfigForm(Form, frozen=True):
    """A setting's current value, and where it is set."""

    name: str
    value: str
    source: str


class TopicDetail(Form, frozen=True):
    """A topic, a page of its partitions, and its settings (empty without DESCRIBE_CONFIGS)."""

    name: str
    topic_id: str
    internal: bool
    partitions: tuple[PartitionSummary, ...]
    total: int
    page: int
    page_size: int
    configs: tuple[ConfigForm, ...]


class ExplanationForm(Form, frozen=True):
    """How a fetch would be served, as `warmlog log explain --json` prints it, and the pages the gate would read first.

    `gate_pages` are the pages that would be read from the disk before the response; null where residency is unknown.
    """

    topic: str
    partition: int
    explanation: Explanation
    gate_pages: int | None
    gate: bool
    page_size: int


class GroupForm(Form, frozen=True):
    """A group, of type classic, consumer (KIP-848), share (KIP-932) or streams (KIP-1071)."""

    group: str
    type: str
    state: str
    protocol_type: str


class GroupList(Form, frozen=True):
    """A page of groups; `total` match the filter."""

    groups: tuple[GroupForm, ...]
    total: int
    page: int
    page_size: int


class PositionForm(Form, frozen=True):
    """A group's position in a partition, and the cost of its next read.

    `next_read` is "memory", "disk", "end" (nothing to read) or null where this broker has no log. `cold_pages` of
    `next_pages` would come from the disk; both are null if an index page is missing.
    """

    topic: str
    partition: int
    offset: int | None
    log_start_offset: int | None
    high_watermark: int | None
    lag: int | None
    member: str | None
    next_read: str | None
    next_pages: int | None
    cold_pages: int | None


class MemberForm(Form, frozen=True):
    """A member of a group."""

    member: str
    instance: str | None
    client_id: str
    host: str
    partitions: int


class GroupDetail(Form, frozen=True):
    """A group with its members and a page of its positions."""

    group: str
    type: str
    state: str
    protocol: str
    members: tuple[MemberForm, ...]
    positions: tuple[PositionForm, ...]
    total: int
    page: int
    page_size: int
    lag: int | None
    now_ms: int


class StallForm(Form, frozen=True):
    """A stall of the event loop: its duration, the API of the current request, and the sampled stack."""

    at_ms: int
    milliseconds: float
    api: str
    stack: str


class PartitionCondition(Form, frozen=True):
    """A condition of a partition."""

    topic: str
    partition: int
    condition: str
    detail: str


class MoveForm(Form, frozen=True):
    """A log being moved to another data directory."""

    topic: str
    partition: int
    to: str
    lag: int


class AlertForm(Form, frozen=True):
    """A current condition, named after an alert of docs/alerts.md; "critical" or "warning"."""

    name: str
    severity: str
    summary: str


class BrokersForm(Form, frozen=True):
    """The brokers that are alive, and the registered ones that are not.

    `isr_changes` counts the changes of in-sync replicas since this broker's startup, by kind.
    """

    registered: tuple[int, ...]
    missing: tuple[int, ...]
    controller: int | None
    isr_changes: dict[str, int]


class Health(Form, frozen=True):
    """An operator's overview: current conditions, and recent events.

    `receipts` (what recovery did), `moves`, `mirror`, `brokers` and `stalls` need DESCRIBE on the cluster, and are null
    or empty without it.
    """

    alerts: tuple[AlertForm, ...]
    stalls: tuple[StallForm, ...]
    partitions: tuple[PartitionCondition, ...]
    all_partitions: int
    receipts: tuple[Any, ...] | None
    moves: tuple[MoveForm, ...] | None
    mirror: Any | None
    brokers: BrokersForm | None


class Done(Form, frozen=True):
    """A change was made."""

    done: str


class EndpointForm(Form, frozen=True):
    """An endpoint: method, path, what it returns or does, which rights it needs, and the name of its schema."""

    method: str
    path: str
    summary: str
    needs: str
    parameters: dict[str, str]
    returns: str


class Index(Form, frozen=True):
    """All endpoints."""

    endpoints: tuple[EndpointForm, ...]
