"""Send the same requests to Kafka and to warmlog and print every difference that is not expected.

python -m interop.compare [--examples N] [--seed N] [--only AREA] [--kafka VERSION] [--all]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from interop.compare.brokers import kafka, warmlog
from interop.compare.difference import unexpected
from interop.compare.expected import EXPECTED
from interop.compare.run import Pair, compare_areas
from interop.compare.scenarios import AREAS
from interop.compare.sequences import SEQUENCES, compare_sequences
from interop.kafka_node import WIRE_VERSION

DEFAULT_EXAMPLES = 40


def main() -> int:
    """Compare; return 1 if there are unexpected differences."""
    parser = argparse.ArgumentParser(prog="python -m interop.compare", description=__doc__)
    parser.add_argument("--examples", type=int, default=DEFAULT_EXAMPLES, help="generated sequences of requests")
    parser.add_argument("--seed", type=int, default=1, help="seed of the generated sequences")
    parser.add_argument(
        "--only", choices=[*AREAS, *SEQUENCES], action="append", help="compare one area; may be repeated"
    )
    parser.add_argument(
        "--kafka", default=WIRE_VERSION, metavar="VERSION", help="version of Kafka; older ones lack newer APIs"
    )
    parser.add_argument("--all", action="store_true", help="also print the expected differences")
    options = parser.parse_args()
    areas = options.only or [*AREAS, *SEQUENCES]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        with kafka(where, options.kafka) as theirs, warmlog(where) as ours:
            pair = Pair(theirs, ours)
            found = compare_areas(pair, [area for area in areas if area in AREAS])
            left = unexpected(found, EXPECTED)
            sequences = [
                compare_sequences(pair, area, options.examples, options.seed) for area in areas if area in SEQUENCES
            ]
    for difference in found if options.all else left:
        print(difference)
    stale = [] if options.only else [entry for entry in EXPECTED if not entry.matches]
    for entry in stale:
        print(f"expected, but no longer found: {entry}")
    disagreements = [found for found in sequences if found is not None]
    for disagreement in disagreements:
        print(disagreement)
    print(
        f"{pair.requests} requests compared in {time.monotonic() - started:.0f} s: {len(found)} differences, "
        f"{len(left)} of them not expected; {len(stale)} expected ones not found"
    )
    return 1 if left or stale or disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
