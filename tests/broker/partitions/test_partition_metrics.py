from pathlib import Path

from prometheus_client import generate_latest

from tests.broker.sync_rig import sync_rig
from warmlog.broker.partitions.partition_metrics import declare_partition_metrics


async def test_offsets_of_every_partition_are_series_of_their_own(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=2) as made:
        declare_partition_metrics(made.metrics, [made.partition])
        for _ in range(3):
            await made.append(b"x")
        text = generate_latest(made.metrics.registry).decode()
        of = '{partition="0",topic="t"}'
        for line in (
            f"warmlog_partition_log_start_offset{of} 0.0",
            f"warmlog_partition_flushed_offset{of} 2.0",
            f"warmlog_partition_high_watermark{of} 3.0",
            f"warmlog_partition_log_end_offset{of} 3.0",
            f"warmlog_partition_log_bytes{of} {made.partition.log.size}.0",
            f"warmlog_partition_failed{of} 0.0",
        ):
            assert line in text
        made.partition.log.fail("its disk")
        assert f"warmlog_partition_failed{of} 1.0" in generate_latest(made.metrics.registry).decode()
