from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from warmlog.client.consuming.subscription import AtOffset, AtTime, parse_start
from warmlog.protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


@pytest.mark.parametrize(
    ("start", "parsed"),
    [
        ("beginning", AtTime(EARLIEST_TIMESTAMP)),
        ("end", AtTime(LATEST_TIMESTAMP)),
        (0, AtOffset(0)),
        (1 << 62, AtOffset(1 << 62)),
        ("500000", AtOffset(500000)),
        ("20261120", AtOffset(20261120)),  # digits are an offset even if they could be a date
        ("2026-11-20T10:00:00Z", AtTime(1795168800000)),
        ("2026-11-20T10:00:00.5Z", AtTime(1795168800500)),
        ("2026-11-20T12:00:00+02:00", AtTime(1795168800000)),
        (datetime(2026, 11, 20, 10, tzinfo=UTC), AtTime(1795168800000)),
        (datetime(2026, 11, 20, 12, tzinfo=timezone(timedelta(hours=2))), AtTime(1795168800000)),
        ({3: 77, 4: "end"}, AtOffset(77)),
        ((1 << 63) - 1, AtOffset((1 << 63) - 1)),
        ("1969-12-31T23:59:59.999Z", AtTime(EARLIEST_TIMESTAMP)),  # -1 would be the end
        ("1970-01-01T00:00:00Z", AtTime(0)),
    ],
)
def test_forms_of_a_start(start: Any, parsed: AtOffset | AtTime) -> None:
    assert parse_start(start, 3) == parsed


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 20, 10)  # noqa: DTZ001 - that is what is tested
    assert parse_start("2026-11-20T10:00:00", 0) == AtTime(round(local.timestamp() * 1000))
    assert parse_start("2026-11-20", 0) == AtTime(round(local.replace(hour=0).timestamp() * 1000))


@pytest.mark.parametrize("start", ["", "now", "-5", "1.5", "2026-13-01", "10:00"])
def test_other_texts_are_rejected(start: str) -> None:
    with pytest.raises(ValueError, match="start must be"):
        parse_start(start, 0)


@pytest.mark.parametrize("start", [1.5, None, True, b"end"])
def test_other_types_are_rejected(start: Any) -> None:
    with pytest.raises(TypeError, match="start must be"):
        parse_start(start, 0)


@pytest.mark.parametrize("start", [-1, 1 << 63, str(1 << 63)])
def test_offsets_out_of_range_are_rejected(start: Any) -> None:
    with pytest.raises(ValueError, match="offset must be from 0 to"):
        parse_start(start, 0)


def test_times_beyond_the_platforms_range_are_rejected() -> None:
    class Distant(datetime):
        def timestamp(self) -> float:
            raise OverflowError("beyond the platform")

    with pytest.raises(ValueError, match="out of range: beyond"):
        parse_start(Distant(2026, 1, 1, tzinfo=UTC), 0)


def test_a_mapping_without_the_partition_raises_key_error() -> None:
    with pytest.raises(KeyError):
        parse_start({1: 5}, 0)
