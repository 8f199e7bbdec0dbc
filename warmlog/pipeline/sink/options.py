"""The options of a write: their meaning, their defaults, and the table of their values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from warmlog.pipeline.brokers import BROKERS_TABLE, Brokers, parse_brokers
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.options import CONNECTOR_NAMES, OptionTexts, count, flag, nonempty, ordinal, word
from warmlog.protocol.records.layout import Codec

OnChangedRows: TypeAlias = Literal["fail", "send"]

DEFAULT_BATCH_BYTES = 256 << 10  # as in the client: a quarter of message.max.bytes; larger is not faster
DEFAULT_BUFFER_BYTES = 16 << 20
DEFAULT_DELIVERY_TIMEOUT_MS = 120_000  # Kafka's delivery.timeout.ms
DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000  # the brokers' limit (transaction.max.timeout.ms), since a job may take long

# Maps an option's name to the form of its value, for error messages.
WRITE_TABLE = {
    **BROKERS_TABLE,
    "topic": "a topic",
    "includeHeaders": '"true" or "false"',
    "writeId": "a name for what is written",
    "writeBatch": "a number from 0",
    "compression": f'"{", ".join(codec.name.lower() for codec in Codec)}"',
    "batchBytes": "a number of bytes from 1",
    "bufferBytes": "a number of bytes from 1",
    "deliveryTimeoutMs": "a number of milliseconds from 1",
    "transactional": '"true" or "false"',
    "transactionTimeoutMs": "a number of milliseconds from 1",
    "autoCreate": '"true" or "false"',
    "onChangedRows": '"fail" or "send"',
    "report": "a file",
}
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write; `docs/pipeline/sink.md` describes each."""

    brokers: Brokers
    topic: str | None = None
    include_headers: bool = True
    write_id: str | None = None
    write_batch: int = 0
    codec: Codec = Codec.NONE
    batch_bytes: int = DEFAULT_BATCH_BYTES
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS
    transactional: bool = False
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
    auto_create: bool = True
    on_changed_rows: OnChangedRows = "fail"
    report: str | None = None


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a write. Raises PipelineError."""
    texts = OptionTexts(given, WRITE_TABLE, "of a write", aliases=CONNECTOR_NAMES, ignored=_SPARKS_OWN)
    brokers = parse_brokers(texts)
    if brokers is None:
        raise PipelineError('no broker address: give option("bootstrap", ...)')
    if "writeBatch" in texts and "writeId" not in texts:
        raise PipelineError("option writeBatch needs writeId: it numbers the batches of that name")
    if "transactionTimeoutMs" in texts and not texts.parsed("transactional", flag, default=False):
        raise PipelineError("option transactionTimeoutMs needs transactional=true")
    return WriteOptions(
        brokers=brokers,
        topic=texts.parsed("topic", nonempty, None),
        include_headers=texts.parsed("includeHeaders", flag, default=True),
        write_id=texts.parsed("writeId", nonempty, None),
        write_batch=texts.parsed("writeBatch", ordinal, 0),
        codec=texts.parsed("compression", lambda text: Codec[text.strip().upper()], Codec.NONE),
        batch_bytes=texts.parsed("batchBytes", count, DEFAULT_BATCH_BYTES),
        buffer_bytes=texts.parsed("bufferBytes", count, DEFAULT_BUFFER_BYTES),
        delivery_timeout_ms=texts.parsed("deliveryTimeoutMs", count, DEFAULT_DELIVERY_TIMEOUT_MS),
        transactional=texts.parsed("transactional", flag, default=False),
        transaction_timeout_ms=texts.parsed("transactionTimeoutMs", count, DEFAULT_TRANSACTION_TIMEOUT_MS),
        auto_create=texts.parsed("autoCreate", flag, default=True),
        on_changed_rows=cast("OnChangedRows", texts.parsed("onChangedRows", word("fail", "send"), "fail")),
        report=texts.parsed("report", nonempty, None),
    )
