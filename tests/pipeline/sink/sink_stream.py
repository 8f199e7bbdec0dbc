"""A program for tests of the sink: a stream from one topic into another, with faults.

    sink_stream.py ADDRESS DIRECTORY FAULTS [NAME=VALUE ...]

`fail`: the first attempt at a task fails after it has stored half of its rows. `kill`: the driver is killed when the
second micro-batch is written and Spark is about to be told; `kill-ending`: when the first of its transactions has been
committed; `kill-ended`: when all have been, and Spark has not been told.

The broker, whose process id is the argument `broker`, is killed in the second micro-batch. `kill-broker-writing`: while
a task writes; `kill-broker-deciding`: before the commit; `kill-broker-ending`: when the first transaction has been
committed. Further arguments are options of the write.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from warmlog.pipeline import WarmlogDataSource, register
from warmlog.pipeline.sink import transactions
from warmlog.pipeline.sink.options import write_options
from warmlog.pipeline.sink.writer import ARROW_STREAMS, ArrowStreamWriter, RowStreamWriter

ADDRESS, DIRECTORY, FAULTS = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split()
OPTIONS = dict(argument.split("=", 1) for argument in sys.argv[4:])
DRIVER = os.getpid()
BATCH_ROWS = 200


class FaultyWriter(ArrowStreamWriter if ARROW_STREAMS else RowStreamWriter):  # type: ignore[misc]
    def __init__(
        self, options: Any, names: list[str], directory: str, faults: list[str], victims: list[int], broker: int
    ) -> None:
        super().__init__(options, *([] if ARROW_STREAMS else [names]))
        self._broker = broker
        self._directory = directory
        self._faults = faults
        self._victims = victims

    def write(self, iterator: Iterator[Any]) -> Any:
        if "fail" in self._faults:
            return super().write(self._halfway(iterator, self._fail))
        if "kill-broker-writing" in self._faults and self._armed.exists():
            return super().write(self._halfway(iterator, self._kill_broker))
        return super().write(iterator)

    def _halfway(self, iterator: Iterator[Any], act: Callable[[], None]) -> Iterator[Any]:
        """Call `act` after half of the rows of a task, the first that gets there."""
        done = Path(self._directory) / "failed"
        rows = list(iterator)
        if ARROW_STREAMS:
            rows = [batch.slice(at, 1) for batch in rows for at in range(batch.num_rows)]
        for at, row in enumerate(rows):
            if at == len(rows) // 2 and not done.exists():
                done.touch()
                act()
            yield row

    @property
    def _armed(self) -> Path:
        """A file that exists once the first micro-batch is committed."""
        return Path(self._directory) / "armed"

    def _fail(self) -> None:
        raise RuntimeError("a fault")

    def _kill_broker(self) -> None:
        os.kill(self._broker, signal.SIGKILL)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        faults = self._faults if batchId == 1 else []
        if "kill-broker-deciding" in faults:
            self._kill_broker()
        if "kill" in faults:
            self._kill()
        end = transactions.end
        if victim := {"kill-ending": self._kill, "kill-broker-ending": self._kill_broker}.get(" ".join(faults[-1:])):

            def end_and_kill(*arguments: Any, **keywords: Any) -> None:
                end(*arguments, **keywords)
                transactions.end = end
                victim()

            transactions.end = end_and_kill
        super().commit(messages, batchId)
        self._armed.touch()
        if "kill-ended" in faults:
            self._kill()

    def _kill(self) -> None:
        for victim in self._victims:
            os.kill(victim, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class FaultySource(WarmlogDataSource):
    @classmethod
    def name(cls) -> str:
        super().name()  # which prepares the session
        return "faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        given = dict(self.options)
        directory, faults, victims = given.pop("directory"), given.pop("faults"), given.pop("victims")
        pids, broker = [int(pid) for pid in victims.split()], int(given.pop("broker", "0"))
        return FaultyWriter(write_options(given), schema.fieldNames(), directory, faults.split(), pids, broker)


def main() -> None:
    builder = SparkSession.builder.master("local[2,2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.local.dir", str(DIRECTORY / "spark")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    spark.dataSource.register(FaultySource)
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    reader = spark.readStream.format("warmlog").options(bootstrap=ADDRESS, topic="source", startingOffsets="earliest")
    frame = reader.option("maxOffsetsPerTrigger", str(BATCH_ROWS)).load().select("key", "value")
    writer = (
        frame.writeStream.format("faulty").options(bootstrap=ADDRESS, topic="copy", batchBytes="300").options(**OPTIONS)
    )
    writer = writer.options(directory=str(DIRECTORY), faults=" ".join(FAULTS), victims=f"{jvm} {DRIVER}")
    writer = writer.options(checkpointLocation=str(DIRECTORY / "checkpoint"), report=str(DIRECTORY / "report"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
