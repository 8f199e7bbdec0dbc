"""Let Spark find the data source `warmlog` without registering it.

Spark imports packages whose names begin with `pyspark_`, and registers their `DefaultSource` (SPARK-45917).
"""

from warmlog.pipeline.data_source import WarmlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
