"""Spark reads what warmlog stores: a Python data source, and jobs that run on it.

    from warmlog.pipeline import WarmlogDataSource

    spark.dataSource.register(WarmlogDataSource)
    spark.read.format("warmlog").option("topic", "orders").option("path", "data").load()

Reading order: `options` (what a user can ask for), `directory` (partitions and segments as files), `positions` (from
what is asked for to offsets), `planning` (to splits), `selection` (all of these together), `reading` (a split to
batches), `arrow` (batches to columns), `source` (Spark's side of it) with `splits`, `worker` and `stream`.
Writing: `sink` (Spark's side), `sink_options`, `sink_rows` (columns to rows), `sink_identity` and `sink_stored` (why
nothing is stored twice), `sink_task` (rows to batches), `sink_sender` and `sink_broker`.
`wire` and `remote` are what stands in place of `directory` and `reading` where records come from a broker.
What `warmlog pipeline` runs: `session` (the Spark it runs on), `origin` (a directory or a broker), `measured` (what is
reported), `jobs` with `count`; `archive` (what a task writes), `lake` (how it is committed), `archive_job` (what comes
next); `table` (an archive read back), `replay`; `audit`, `audit_table`, `audit_job`, `audit_plot`; `compact_report`.

Owns: that importing this package costs nothing, and what is said where Spark is missing. Spark comes with the extra
`warmlog[spark]`; the modules up to `reading` need neither it nor Java.
"""

from typing import TYPE_CHECKING, Any

from warmlog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from warmlog.pipeline.source import WarmlogDataSource as WarmlogDataSource

__all__ = ["PipelineError", "WarmlogDataSource"]


def __getattr__(name: str) -> Any:
    """`WarmlogDataSource`, at its first use. Raises PipelineError where pyspark or pyarrow is missing."""
    if name != "WarmlogDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warmlog.pipeline.availability import check_libraries

    check_libraries()
    from warmlog.pipeline.source import WarmlogDataSource

    return WarmlogDataSource


def __dir__() -> list[str]:
    return __all__
