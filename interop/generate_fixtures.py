"""Regenerate tests/fixtures/kafka/4.3.1 with a real Kafka: `python interop/generate_fixtures.py` (Java, Maven).

Three data directories: `clean` (stopped cleanly), `killed` (killed, the last batch of each log then cut in two, as a
power cut may leave it) and `recovered` (the same directory after Kafka started over it, repaired it and was stopped).
For each of them, the outputs of Kafka's consumer and of its dump tool are stored as well.
"""

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import KAFKA_VERSION, KafkaNode, consume, dump, java

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / KAFKA_VERSION
TOPICS = (
    *("plain", "gzip", "snappy", "lz4", "zstd", "append-time", "sparse-index", "index-full", "empty", "aged"),
    *("keyed", "idempotent", "transactional", "trimmed", "compacted"),
)
KILLED_TOPICS = ("killed", "killed-lz4")
#: Kafka's metadata log and files that only a running Kafka needs.
LEFT_OUT = shutil.ignore_patterns("__cluster_metadata-0", ".lock", "bootstrap.checkpoint", "*.deleted", "*-delete")
#: Bytes of a log's last batch kept in the torn tail: more than a header, less than the whole.
TORN_BATCH_SIZE = 75
BACKGROUND_LIMIT_S = 60


def main() -> None:
    """Write everything to a new directory first, so that a failed run leaves the old files unchanged."""
    with tempfile.TemporaryDirectory() as name:
        work, made = Path(name), Path(name) / "made"
        made.mkdir()
        make_clean(work, made)
        make_killed(work, made)
        for directory in ("clean", "recovered"):
            write_dumps(made / directory, made / "dumps" / directory)
        for old in ("clean", "killed", "recovered", "seen", "dumps"):
            shutil.rmtree(TARGET / old, ignore_errors=True)
        shutil.copytree(made, TARGET, dirs_exist_ok=True)


def make_clean(work: Path, made: Path) -> None:
    """Fill every topic, wait for the background work, record the consumer's output, stop cleanly."""
    data = work / "clean"
    with KafkaNode(data) as node:
        java("warmlog.interop.Produce", node.bootstrap, "all")
        wait_until(lambda: first_base(data / "trimmed-0") > 0, "segments below the log start offset to go")
        wait_until(lambda: cleaned_to(data, "compacted") == active_base(data / "compacted-0"), "the cleaner")
        write_seen(made / "seen" / "clean", consume(node.bootstrap, *TOPICS))
        committed = consume(node.bootstrap, "transactional", isolation="read_committed")
        write_seen(made / "seen" / "read_committed", committed)
    shutil.copytree(data, made / "clean", ignore=LEFT_OUT)


def make_killed(work: Path, made: Path) -> None:
    """Kill a node after its acknowledgements, tear its logs, save the result, and let Kafka repair it."""
    data = work / "killed"
    node = KafkaNode(data)
    node.start()
    java("warmlog.interop.Produce", node.bootstrap, "killed")
    write_seen(made / "seen" / "killed", consume(node.bootstrap, *KILLED_TOPICS))
    node.kill()
    for topic in KILLED_TOPICS:
        tear(data / f"{topic}-0")
    shutil.copytree(data, made / "killed", ignore=LEFT_OUT)
    with node:
        write_seen(made / "seen" / "recovered", consume(node.bootstrap, *KILLED_TOPICS))
    shutil.copytree(data, made / "recovered", ignore=LEFT_OUT)


def tear(partition: Path) -> None:
    """Cut the active segment's last batch in two."""
    log = partition / f"{active_base(partition):020}.log"
    content = log.read_bytes()
    position = next_position = 0
    while next_position < len(content):
        position = next_position
        next_position += 12 + int.from_bytes(content[position + 8 : position + 12])
    log.write_bytes(content[: position + TORN_BATCH_SIZE])


def write_seen(target: Path, partitions: list[dict[str, object]]) -> None:
    """Write a JSON file per partition with one line per record, so that the diff of two runs is readable.

    A record's timestamp type is included only if it is not CreateTime.
    """
    target.mkdir(parents=True, exist_ok=True)
    for seen in partitions:
        records = seen.pop("records")
        assert isinstance(records, list)
        for record in records:
            if record["timestamp_type"] == "CreateTime":
                del record["timestamp_type"]
        head = json.dumps(seen)[:-1]
        lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
        (target / f"{seen['topic']}-{seen['partition']}.json").write_text(f'{head}, "records": [\n{lines}\n]}}\n')


def write_dumps(data: Path, target: Path) -> None:
    """Write a text per partition: DumpLogSegments' output for each file, and its findings (gaps from compaction)."""
    for partition in sorted(path for path in data.iterdir() if path.is_dir()):
        files = sorted(path for path in partition.iterdir() if re.fullmatch(r"\d{20}\.\w+", path.name))
        files = [path for path in files if path.stat().st_size > 0]
        texts = []
        for path, said in zip(files, dump(["--deep-iteration", "--files", path] for path in files), strict=True):
            report = "\n".join([said.output, *said.findings()])
            texts.append(f"== {path.name}\n{report.replace(str(path), path.name)}\n")
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{partition.name}.txt").write_text("".join(texts))


def bases(partition: Path) -> list[int]:
    """Return the base offsets of a partition's segments in order."""
    return sorted(int(path.stem) for path in partition.glob("*.log"))


def first_base(partition: Path) -> int:
    """Return the base offset of the oldest segment."""
    return bases(partition)[0]


def active_base(partition: Path) -> int:
    """Return the base offset of the active segment."""
    return bases(partition)[-1]


def cleaned_to(data: Path, topic: str) -> int:
    """Return the offset up to which partition 0 of a topic was compacted, by the cleaner's checkpoint; -1 if never."""
    checkpoint = data / "cleaner-offset-checkpoint"
    found = re.search(rf"^{topic} 0 (\d+)$", checkpoint.read_text() if checkpoint.exists() else "", re.MULTILINE)
    return int(found[1]) if found else -1


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for background work of Kafka that does not report its completion."""
    limit = time.monotonic() + BACKGROUND_LIMIT_S
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"timed out waiting for {what}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
