"""Records of topics as Arrow record batches, for DuckDB, Polars, pandas and other libraries that read Arrow.

import duckdb, warmlog.arrow
orders = warmlog.arrow.scan("orders", path="data", columns=["offset", "value"])
duckdb.sql("SELECT count(*), max(offset) FROM orders")
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.session import check_libraries
from warmlog.pipeline.source.input import plan_batch, read_batches, rules_of
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.pipeline.source.plan import AnySplit
from warmlog.pipeline.source.ranges import Bounds

if TYPE_CHECKING:
    import pyarrow as pa


def scan(
    topic: str | None,
    *,
    path: str | None = None,
    bootstrap: str | None = None,
    columns: Iterable[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> "pa.RecordBatchReader":
    """Return a reader of the current records of a topic, partition by partition, in offset order.

    `topic`: one or several topics, separated by commas; None if the options have `assign` or `subscribePattern`.

    Batches of a few megabytes are read on demand. Omitted columns are not decoded.

    `path`: one or several data directories of warmlog, Kafka or a mirror, separated by commas. `bootstrap`: `host:port`
    of a broker's native listener, used if there is no path. `columns`: any of key, value, topic, partition, offset,
    timestamp, timestampType and headers; all by default. `options`: options of the data source, such as
    startingTimestamp, endingOffsets or isolationLevel, named as in `docs/pipeline/source.md`.

    Raises PipelineError, InspectError, OSError for an invalid topic or option; the reader raises them for damage, or
    for records that are deleted before they are read.
    """
    check_libraries("pyarrow", extra="lakehouse")
    import pyarrow as pa

    from warmlog.pipeline.source.arrow import arrow_schema

    named = {"topic": topic, "path": path, "bootstrap": bootstrap}
    given = {name: text for name, text in named.items() if text is not None} | dict(options or {})
    if columns is not None:
        given["columns"] = ",".join(columns)
    else:
        given.setdefault("includeHeaders", "true")
    parsed = read_options(given)
    if not parsed.columns:
        raise PipelineError("no columns: name at least one")
    plan = plan_batch(parsed, Bounds())
    return pa.RecordBatchReader.from_batches(arrow_schema(parsed.columns), _batches(plan.splits, parsed))


def _batches(splits: Iterable[AnySplit], options: ReadOptions) -> Iterator[Any]:
    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches

    for split in splits:
        decoder = ArrowDecoder(split.topic, split.partition, options.columns)
        steps, _ = read_batches(split, rules_of(options), decoder.add)
        yield from record_batches(decoder, steps)
