"""Regenerate tests/fixtures/kafka/4.3.1/frames.jsonl: `python interop/generate_frames.py` (Java, Maven).

Records which compressed blocks Kafka's decoders accept. A line is {"name", "codec", "block" in hexadecimal digits,
"broker" and "consumer": the errors of the reader that validates a produce request and of a consumer's; null for none}.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import KAFKA_VERSION, java
from tests.protocol.records.frames import frames

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / KAFKA_VERSION / "frames.jsonl"


def main() -> None:
    """Decode the blocks with Kafka's classes; write the results."""
    sent = list(frames())
    found = java("warmlog.interop.Frames", text="".join(f"{frame.batch().hex()}\n" for frame in sent)).splitlines()
    with TARGET.open("w", encoding="ascii") as target:
        for frame, line in zip(sent, found, strict=True):
            broker, consumer = line.split("\t")
            entry = {"name": frame.name, "codec": frame.codec.name.lower(), "block": frame.block.hex()}
            target.write(json.dumps({**entry, "broker": broker or None, "consumer": consumer or None}) + "\n")


if __name__ == "__main__":
    main()
