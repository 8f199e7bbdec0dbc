"""What a user asks the sink for: the options of a write.

Owns: their table and how their texts are read. Must not know: rows, or how they are sent.

Every option is checked when the writer is made, before a task begins: an unknown name or a bad value is an error that
names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias, TypeVar

from protocol.records.layout import Codec
from warmlog.client.settings import parse_bootstrap
from warmlog.pipeline.errors import PipelineError

OnChangedRows: TypeAlias = Literal["fail", "send"]
T = TypeVar("T")

DEFAULT_BATCH_BYTES = 256 << 10  # as the client's: a quarter of what a broker takes, and past it bigger is not faster
DEFAULT_BUFFER_BYTES = 16 << 20  # of a task; half of it is what keeps a broker busy
DEFAULT_DELIVERY_TIMEOUT_MS = 120_000  # Kafka's delivery.timeout.ms

# Every option: its name as documented, and what its value must look like, for errors.
WRITE_TABLE = {
    "bootstrap": "a broker's native address, host:port",
    "topic": "a topic",
    "writeId": "a name for what is written",
    "writeBatch": "a number from 0 on",
    "compression": f'"{", ".join(codec.name.lower() for codec in Codec)}"',
    "batchBytes": "a number of bytes from 1 on",
    "bufferBytes": "a number of bytes from 1 on",
    "deliveryTimeoutMs": "a number of milliseconds from 1 on",
    "autoCreate": '"true" or "false"',
    "onChangedRows": '"fail" or "send"',
    "report": "a file",
}
_NAMES = {name.lower(): name for name in WRITE_TABLE}
_OF_SPARK = frozenset({"checkpointlocation"})  # what it gives a sink of what is its own


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """All options of a write. See `docs/pipeline.md` for each."""

    bootstrap: str
    topic: str | None = None
    write_id: str | None = None
    write_batch: int = 0
    codec: Codec = Codec.NONE
    batch_bytes: int = DEFAULT_BATCH_BYTES
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS
    auto_create: bool = True
    on_changed_rows: OnChangedRows = "fail"
    report: str | None = None


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Check all options. Raises PipelineError."""
    return _Reader(given).options()


class _Reader:
    """The options as texts, by their documented names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._texts: dict[str, str] = {}
        for name, text in given.items():
            if name.lower() in _OF_SPARK:
                continue
            known = _NAMES.get(name.lower())
            if known is None:
                raise PipelineError(f"there is no option {name!r} of a write{_nearest(name)}")
            self._texts[known] = text

    def options(self) -> WriteOptions:
        if "bootstrap" not in self._texts:
            raise PipelineError('where to? option("bootstrap", ...) names a broker')
        self._parsed("bootstrap", parse_bootstrap, None)
        if "writeBatch" in self._texts and "writeId" not in self._texts:
            raise PipelineError("option writeBatch needs writeId: it is the number of a batch of that name")
        return WriteOptions(
            bootstrap=self._texts["bootstrap"],
            topic=self._parsed("topic", _named, None),
            write_id=self._parsed("writeId", _named, None),
            write_batch=self._parsed("writeBatch", _ordinal, 0),
            codec=self._parsed("compression", lambda text: Codec[text.strip().upper()], Codec.NONE),
            batch_bytes=self._parsed("batchBytes", _count, DEFAULT_BATCH_BYTES),
            buffer_bytes=self._parsed("bufferBytes", _count, DEFAULT_BUFFER_BYTES),
            delivery_timeout_ms=self._parsed("deliveryTimeoutMs", _count, DEFAULT_DELIVERY_TIMEOUT_MS),
            auto_create=self._parsed("autoCreate", _flag, default=True),
            on_changed_rows=self._parsed("onChangedRows", _on_changed_rows, "fail"),
            report=self._parsed("report", _named, None),
        )

    def _parsed(self, name: str, parse: Callable[[str], T], default: T) -> T:
        if name not in self._texts:
            return default
        try:
            return parse(self._texts[name])
        except (ValueError, KeyError):
            message = f"option {name}: {self._texts[name]!r} is not {WRITE_TABLE[name]}"
            raise PipelineError(message) from None


def _nearest(name: str) -> str:
    close = get_close_matches(name.lower(), _NAMES, n=1)
    return f"; did you mean {_NAMES[close[0]]}?" if close else f"; there are {', '.join(WRITE_TABLE)}"


def _named(text: str) -> str:
    if not text.strip():
        raise ValueError("empty")
    return text.strip()


def _ordinal(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("too small")
    return number


def _count(text: str) -> int:
    number = _ordinal(text)
    if number == 0:
        raise ValueError("too small")
    return number


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _on_changed_rows(text: str) -> OnChangedRows:
    known: dict[str, OnChangedRows] = {"fail": "fail", "send": "send"}
    return known[text.strip().lower()]
