"""A program for tests of restarts: a stream from one topic to another or to a table.

    restart_stream.py SETTINGS

JSON: "source" and "sink", options of both by name, "format" of the sink, "directory" of the checkpoint.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from warmlog.pipeline import register


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.local.dir", str(directory / "spark")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    frame = spark.readStream.format("warmlog").options(**given["source"]).load().select("key", "value")
    writer = frame.writeStream.format(given["format"]).options(**given["sink"])
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
