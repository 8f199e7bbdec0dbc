"""The output of Kafka's tools without what differs from one run to the next."""

import re

from interop.java_tools import ToolOutput

# Patterns of what differs between runs, with their replacements.
VARYING = (
    (r"(\w+-)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"\1MEMBER"),
    (r"127\.0\.0\.1:\d+", "HOST:PORT"),
    (r"127\.0\.0\.1 +\d+ ", "HOST PORT "),
    (r"TopicId: [\w-]{22}", "TopicId: ID"),
    (r"Cluster ID: [\w-]+", "Cluster ID: ID"),
    (r"\"timestamp\":\d+", '"timestamp":T'),
    (r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\]", "[T]"),
    (r"console-consumer-\d+", "console-consumer-N"),
    (r"perf-consumer-\d+", "perf-consumer-N"),
    (r"\"avg_throughput\":[\d.]+", '"avg_throughput":N'),
    # a member's id is as long as its client's name, a console's number has four or five digits: columns move with them,
    # and between the two widest cells stands a single space
    (r" {2,}", " "),
    (r"(?m)[ \t]+$", ""),
    # producer id, and the time of its last batch
    (r"(?m)^\d+\s+0\s+(-1|0)\s+(\d+)\s+\d{13}", r"ID 0 \1 \2 T"),
    # the transactions of other tests; producer id, start and duration of this one
    (r"(?m)^(?!purchases)\S+ *\t1 *\t\d+ *\t\w+$", ""),
    (r"(?m)^(purchases *\t1 *\t)\d+", r"\1ID"),
    (r"(?m)^(1 *\tpurchases *\t)\d+( *\t\d+ *\t\w+ *\t\d+ *\t)\d{13} *\t\d+", r"\1ID\2T T"),
    # with eligible leader replicas (KIP-966) Kafka notes the setting with every topic and for all brokers
    (r"min\.insync\.replicas=1,?", ""),
    (r"(?m)^[0-9a-f]{64}\b.*\n", ""),  # groups of franz-go's own tests, which may have run on one of both only
    (r"(?m)^ +sensitive=false synonyms=\{DYNAMIC_DEFAULT_BROKER_CONFIG:\}$", ""),
)


#: Where an exception came from, and the one that ends a tool here instead of its process.
BESIDE_THE_POINT = re.compile(r"\tat |exit status \d|warmlog\.interop\.Tools\$Exited|$")


def steady(said: ToolOutput) -> tuple[int, list[str], list[str]]:
    """The status and the lines of both streams, without what is another in every run; their order may vary, too."""

    def lines(text: str) -> list[str]:
        for pattern, replacement in VARYING:
            text = re.sub(pattern, replacement, text)
        return sorted(line for line in text.splitlines() if not BESIDE_THE_POINT.match(line))

    return said.status, lines(said.output), lines(said.complaints)
