"""Spark for warmlog's topics: a Python data source, and jobs.

    from warmlog.pipeline import register

    register(spark)
    spark.read.format("warmlog").option("topic", "orders").option("path", "data").load()

Start with `data_source`, then `source` (reads), `sink` (writes), `lakehouse` (tables) and `jobs` (run by `warmlog
pipeline`). Importing this package is cheap and needs no extra; Spark comes with `warmlog[spark]`.
"""

from typing import TYPE_CHECKING, Any

from warmlog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from warmlog.pipeline.data_source import WarmlogDataSource as WarmlogDataSource
    from warmlog.pipeline.data_source import register as register

__all__ = ["PipelineError", "WarmlogDataSource", "register"]


def __getattr__(name: str) -> Any:
    """Import names that need Spark at their first use. Raises PipelineError if pyspark or pyarrow is missing."""
    if name not in {"WarmlogDataSource", "register"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from warmlog.pipeline.session import check_libraries

    check_libraries()
    from warmlog.pipeline import data_source

    return getattr(data_source, name)


def __dir__() -> list[str]:
    return __all__
