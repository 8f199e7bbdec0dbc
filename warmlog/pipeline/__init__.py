"""Spark over what warmlog stores: a Python data source, and jobs.

    from warmlog.pipeline import WarmlogDataSource

    spark.dataSource.register(WarmlogDataSource)
    spark.read.format("warmlog").option("topic", "orders").option("path", "data").load()

Start with `data_source`, then `source` (reads), `sink` (writes), `archive` and `jobs` (what `warmlog pipeline` runs).
Importing this package is cheap and needs no extra; Spark comes with `warmlog[spark]`.
"""

from typing import TYPE_CHECKING, Any

from warmlog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from warmlog.pipeline.data_source import WarmlogDataSource as WarmlogDataSource

__all__ = ["PipelineError", "WarmlogDataSource"]


def __getattr__(name: str) -> Any:
    """Import `WarmlogDataSource` at its first use. Raises PipelineError if pyspark or pyarrow is missing."""
    if name != "WarmlogDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warmlog.pipeline.session import check_libraries

    check_libraries()
    from warmlog.pipeline.data_source import WarmlogDataSource

    return WarmlogDataSource


def __dir__() -> list[str]:
    return __all__
