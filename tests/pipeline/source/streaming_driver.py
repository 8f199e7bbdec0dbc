"""A driver that is killed: `python -m tests.pipeline.source.streaming_driver WORK OPTIONS` streams a topic to Parquet.

WORK gets the table, the checkpoint and Spark's own files; OPTIONS are the source's, as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any


def started(spark: Any, work: Path, options: dict[str, str], **trigger: Any) -> Any:
    """The query, running."""
    frame = spark.readStream.format("warmlog").options(**options).load()
    writer = frame.writeStream.format("parquet").option("path", str(work / "table"))
    return writer.option("checkpointLocation", str(work / "checkpoint")).trigger(**trigger).start()


if __name__ == "__main__":
    from tests.pipeline.session import spark_session

    given = Path(sys.argv[1])
    started(
        spark_session(given / "spark"), given, json.loads(sys.argv[2]), processingTime="0 seconds"
    ).awaitTermination()
