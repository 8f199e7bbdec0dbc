"""`python -m benchmarks.questions.batch_checks`: the cost of validating a produced batch, by codec and size.

This includes decompression, on the event loop or in a thread (`broker.partitions.appends.batch_opener`).
Each figure is the median of many runs in one thread.
"""

import json
import random
from collections.abc import Callable
from statistics import median
from time import perf_counter

from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import HEADER_SIZE, Codec
from warmlog.protocol.records.reencode import reencode_batches
from warmlog.protocol.records.validation import BatchRules, check_and_stamp, check_batches

NOW_MS = 1_700_000_000_000
RECORD_COUNTS = (1, 10, 100, 1000, 5000)
VALUE_BYTES = 200
RUNS = 300
RULES = BatchRules()


def value(source: random.Random) -> bytes:
    """Return a JSON document; half of it differs in every record."""
    fields = {"id": source.randrange(10**9), "name": source.choice(["alpha", "beta", "gamma"]), "at": source.random()}
    return json.dumps(fields | {"note": "the quick brown fox " * 10}).encode()[:VALUE_BYTES]


def microseconds(work: Callable[[], object]) -> float:
    """Return the median time of one run."""
    times = []
    for _ in range(RUNS):
        begun = perf_counter()
        work()
        times.append(perf_counter() - begun)
    return 1e6 * median(times)


def main() -> None:
    """Print a line for each codec and size."""
    source = random.Random(1)  # the same batches every time
    print(f"{'codec':8}{'records':>9}{'sent':>10}{'opened':>10}{'us':>9}{'MB/s opened':>13}")
    for count in RECORD_COUNTS:
        rows = [(NOW_MS + at, b"k%d" % at, value(source), ()) for at in range(count)]
        opened = len(build_batch(rows)) - HEADER_SIZE
        for codec in Codec:
            sent = build_batch(rows, compression=codec)
            took = microseconds(lambda sent=sent, codec=codec: _check(sent, codec))  # type: ignore[misc]
            print(
                f"{codec.name.lower():8}{count:9}{len(sent):10}{opened:10}{took:9.1f}{opened / took:13.0f}", flush=True
            )


def _check(sent: bytes, codec: Codec) -> object:
    if codec is Codec.NONE:
        return check_and_stamp(memoryview(sent), RULES, NOW_MS, 0, 0) or check_batches(sent, RULES, NOW_MS)
    return check_batches(reencode_batches(sent, RULES, NOW_MS), RULES, NOW_MS, reencoded=True)


if __name__ == "__main__":
    main()
