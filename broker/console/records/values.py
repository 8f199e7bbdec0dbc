"""The values of `/api/v1` that show records. See `values`."""

from warmlog.broker.console.values import Form


class BytesForm(Form, frozen=True):
    """Bytes of a record: `text` if they are printable UTF-8, else `hex`; the first `shown` of `size` bytes."""

    size: int
    shown: int
    text: str | None = None
    hex: str | None = None


class HeaderForm(Form, frozen=True):
    """A header of a record."""

    key: str
    value: BytesForm | None


class RecordForm(Form, frozen=True):
    """A record. `control` names the marker of a transaction. `batch` is the base offset of its batch."""

    offset: int
    timestamp: int
    batch: int
    key: BytesForm | None
    value: BytesForm | None
    headers: tuple[HeaderForm, ...]
    control: str | None = None


class ReadCost(Form, frozen=True):
    """The cost of a read: pages of the log, those that came from the disk, and lookups that waited for the disk."""

    bytes: int
    pages: int
    cold_pages: int
    cold_lookups: int
    milliseconds: float


class RecordList(Form, frozen=True):
    """Records in the requested order.

    `searched` of `to_search` offsets were examined. `next_from` continues in the same direction, null at the end.
    `skipped` are batches that could not be decoded, or exceed the budget.
    """

    topic: str
    partition: int
    records: tuple[RecordForm, ...]
    log_start_offset: int
    high_watermark: int
    searched: int
    to_search: int
    next_from: int | None
    skipped: tuple[str, ...]
    cost: ReadCost
