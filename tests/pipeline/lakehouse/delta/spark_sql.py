"""Runs SQL on a Spark of its own with delta-spark: a statement in JSON on each line, and its rows in JSON.

python -m tests.pipeline.lakehouse.delta.spark_sql JARS DIRECTORY
"""

import json
import sys
from pathlib import Path

from tests.pipeline.session import spark_session


def main(jars: str, directory: str) -> None:
    """Answer until the input ends."""
    settings = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    spark = spark_session(Path(directory), settings)
    for line in sys.stdin:
        rows = [list(row) for row in spark.sql(json.loads(line)).collect()]
        print(json.dumps(rows, default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
