"""Values of settings, as text and as what they are. What Kafka takes was looked up in Kafka 4.3.1."""

import sys
from typing import Any

import pytest

from warmlog.broker.settings.types import (
    Bytes,
    CleanupPolicy,
    GzipLevel,
    Kind,
    Millis,
    Ratio,
    SettingError,
    TimestampType,
    as_text,
    check_value,
    kind_of,
    parts,
)


@pytest.mark.parametrize(
    ("value_type", "text", "value"),
    [
        (Millis, " 7 ", 7),
        (Millis, "+7", 7),
        (Millis, "007", 7),
        (GzipLevel, "-1", -1),
        (bool, "TRUE", True),
        (Ratio, " 0.25", 0.25),
        (Ratio, ".5", 0.5),
        (Ratio, "+5.e-1d", 0.5),
        (CleanupPolicy, " compact , delete ", "compact,delete"),
        (CleanupPolicy, "compact,compact", "compact"),
        (CleanupPolicy, "", ""),
        (int | None, "5", 5),
    ],
)
def test_white_space_signs_and_repetition_do_not_count(value_type: Any, text: str, value: object) -> None:
    assert check_value("name", text, value_type, origin="test") == value


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        (Millis, "1e3"),
        (Millis, "7.0"),
        (Millis, "1_0"),
        (Millis, "-1"),
        (Millis, ""),
        (Millis, "9223372036854775808"),
        (Millis, "9" * 5000),
        (Bytes, "2147483648"),
        (bool, "yes"),
        (Ratio, "2"),
        (Ratio, "NaN"),
        (Ratio, "."),
        (Ratio, "0_1"),
        (Ratio, "9" * 5000),
        (CleanupPolicy, "compact,squash"),
        (GzipLevel, "0"),
        (TimestampType, "createtime"),
    ],
)
def test_what_is_no_value_is_refused_by_name(value_type: Any, text: str) -> None:
    with pytest.raises(SettingError, match=r"^test: name: expected .*, not "):
        check_value("name", text, value_type, origin="test")


@pytest.mark.parametrize(
    ("value_type", "kind"),
    [
        (bool, Kind.BOOLEAN),
        (Bytes, Kind.INT),
        (Bytes | None, Kind.INT),
        (Millis, Kind.LONG),
        (Millis | None, Kind.LONG),
        (GzipLevel, Kind.INT),
        (Ratio, Kind.DOUBLE),
        (CleanupPolicy, Kind.LIST),
        (TimestampType, Kind.STRING),
        (str, Kind.STRING),
    ],
)
def test_what_a_value_is_comes_from_its_type(value_type: Any, kind: Kind) -> None:
    assert kind_of(value_type) is kind


def test_values_as_they_are_told() -> None:
    assert [as_text(value) for value in (True, 7, 0.5, "x", None)] == ["true", "7", "0.5", "x", None]
    assert [as_text(value) for value in (1e-05, sys.float_info.max)] == ["1E-05", "1.7976931348623157E308"]


def test_the_members_of_a_list() -> None:
    assert parts("a, b,,a ") == ["a", "b"]
    assert parts("") == []
