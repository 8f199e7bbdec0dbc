"""Offsets by time, asked of a broker."""

from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest

from warmlog import Client
from warmlog.testing import Broker

FIRST_MS = 1_700_000_000_000


def at(record: int) -> datetime:
    return datetime.fromtimestamp((FIRST_MS + record) / 1000, UTC)


def counted(broker: Broker, section: str) -> float:
    with urlopen(f"http://{broker.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = f'warmlog_index_lookups_total{{index="time",section="{section}"}}'
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))


@pytest.fixture
def full_broker(tmp_path: Path) -> Broker:
    """With so many batches that the time index has a warm and a cold section."""
    return Broker(data_dir=tmp_path, settings={"log.index.interval.bytes": 0})


def test_lookups_by_time_are_counted_by_the_section_of_the_index(full_broker: Broker) -> None:
    with full_broker as broker, Client(broker.native) as client:
        for time in range(1500):
            client.produce_nowait("orders", value=b"x", timestamp=FIRST_MS + time)
            client.flush()
        assert counted(broker, "warm") == counted(broker, "cold") == 0
        assert client.offsets("orders", at(1490)) == {0: 1490}
        assert (counted(broker, "warm"), counted(broker, "cold")) == (1, 0)
        assert client.offsets("orders", at(3)) == {0: 3}
        assert (counted(broker, "warm"), counted(broker, "cold")) == (1, 1)
        assert client.offsets("orders", "end") == {0: 1500}
        assert client.offsets("orders", "beginning") == {0: 0}
        assert (counted(broker, "warm"), counted(broker, "cold")) == (1, 1)


def flip(path: Path, at: int) -> None:
    """Alter the lowest bit of a byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("suffix", "at_byte"), [(".index", 5 * 8 + 7), (".timeindex", 5 * 12 + 11)])
def test_every_time_is_found_though_a_bit_of_an_active_index_is_flipped(
    full_broker: Broker, tmp_path: Path, suffix: str, at_byte: int
) -> None:
    with full_broker as broker, Client(broker.native) as client:
        for time in range(20):
            client.produce_nowait("orders", value=b"x", timestamp=FIRST_MS + time)
            client.flush()
    flip(tmp_path / "orders-0" / f"{0:020}{suffix}", at_byte)
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        assert [client.offsets("orders", at(time)) for time in range(20)] == [{0: time} for time in range(20)]
    assert (tmp_path / "orders-0" / f"{20:020}.log").exists()
