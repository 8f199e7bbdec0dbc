"""kcat as Debian ships it: an old librdkafka with its own idea of which versions to speak."""

import json
from collections.abc import Callable

import pytest

from interop.kafka_node import MissingToolError
from tests.interop.clients.programs import program, run
from tests.requires import lacks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

EPOCH_MS = 1_700_000_000_000
FORMAT = r"%p %o %K %k %S %s %h\n"

#: (options, standard input) -> standard output
Kcat = Callable[..., str]


@pytest.fixture
def kcat(bootstrap: str) -> Kcat:
    try:
        path = program("kcat", "kcat")
    except MissingToolError as error:
        lacks(error)

    def call(*options: str, text: str | None = None) -> str:
        return run([path, "-b", bootstrap, "-X", "auto.offset.reset=earliest", *options], text=text)

    return call


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_codec_come_back(kcat: Kcat, codec: str) -> None:
    topic = f"kcat-{codec}"
    lines = "".join(f"key-{i}:{'value ' * 20}{i}\n" for i in range(50))
    kcat("-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, "-H", "a=1", "-H", "b=", text=lines)
    found = kcat("-C", "-t", topic, "-e", "-q", "-o", "beginning", "-f", r"%k:%s|%h|%o\n").splitlines()
    assert found == [f"{line}|a=1,b=|{i}" for i, line in enumerate(lines.splitlines())]


def test_null_and_empty_are_different(kcat: Kcat) -> None:
    """-Z sends what is empty as null; without a key delimiter there is no key."""
    kcat("-P", "-t", "kcat-null", "-p", "0", "-K", ":", "-Z", text="key:\n:value\n")
    kcat("-P", "-t", "kcat-null", "-p", "0", "-K", ":", text="key:\n")
    found = kcat("-C", "-t", "kcat-null", "-e", "-q", "-o", "beginning", "-f", r"%K %S\n").splitlines()
    assert found == ["3 -1", "-1 5", "3 0"]


def test_metadata_tell_of_the_broker_and_its_topics(kcat: Kcat, bootstrap: str) -> None:
    kcat("-P", "-t", "kcat-listed", "-p", "0", text="value\n")
    told = json.loads(kcat("-L", "-J"))
    assert told["brokers"] == [{"id": 1, "name": bootstrap}]
    assert told["controllerid"] == 1
    partition = {"partition": 0, "leader": 1, "replicas": [{"id": 1}], "isrs": [{"id": 1}]}
    (topic,) = [each for each in told["topics"] if each["topic"] == "kcat-listed"]
    assert topic["partitions"] == [partition]


def test_offsets_are_found_by_time_and_read_from(kcat: Kcat) -> None:
    topic = "kcat-times"
    kcat("-P", "-t", topic, "-p", "0", text="one\ntwo\nthree\n")
    times = [int(each) for each in kcat("-C", "-t", topic, "-e", "-q", "-o", "0", "-f", r"%T\n").split()]

    def offset(at: int) -> str:
        return kcat("-Q", "-t", f"{topic}:0:{at}").strip()

    assert offset(-2) == f"{topic} [0] offset 0"
    assert offset(-1) == f"{topic} [0] offset 3"
    assert offset(times[0]) == f"{topic} [0] offset 0"
    assert offset(times[-1] + 1) == f"{topic} [0] offset -1"
    ends = [kcat("-C", "-t", topic, "-e", "-q", "-o", where, "-f", r"%o ") for where in ("-1", "1", f"s@{times[0]}")]
    assert ends == ["2 ", "1 2 ", "0 1 2 "]


def test_a_group_goes_on_where_it_was(kcat: Kcat) -> None:
    topic = "kcat-group"
    kcat("-P", "-t", topic, "-p", "0", text="".join(f"{i}\n" for i in range(10)))
    first = kcat("-G", "kcat-group", "-q", "-c", "4", topic)
    second = kcat("-G", "kcat-group", "-q", "-c", "6", topic)
    assert (first + second).split() == [str(i) for i in range(10)]


def test_an_idempotent_producer_and_one_without_acknowledgement(kcat: Kcat) -> None:
    topic = "kcat-producers"
    for setting in ("enable.idempotence=true", "acks=1", "acks=0"):
        kcat("-P", "-t", topic, "-p", "0", "-X", setting, text=f"{setting}\n")
    found = kcat("-C", "-t", topic, "-q", "-c", "3", "-o", "beginning")
    assert found.splitlines() == ["enable.idempotence=true", "acks=1", "acks=0"]
