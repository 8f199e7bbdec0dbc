from typing import Any

import pytest

from warmlog.client.settings import Settings, parse_address, parse_bootstrap
from warmlog.protocol.records.layout import Codec


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("localhost:9091", ("localhost", 9091)),
        ("localhost", ("localhost", 9091)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:9092", ("::1", 9092)),
        ("[::1]", ("::1", 9091)),
        ("a.b-c.example:65535", ("a.b-c.example", 65535)),
    ],
)
def test_addresses(address: str, parsed: tuple[str, int]) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize("address", ["", ":9091", "a:b", "::1", "a:1:2", "[::1", "[::1]9091", "a:", "a:-1", "a:+1"])
def test_invalid_addresses_are_rejected(address: str) -> None:
    with pytest.raises(ValueError, match="address must be host:port"):
        parse_address(address)


@pytest.mark.parametrize("address", ["a:0", "a:65536"])
def test_ports_out_of_range_are_rejected(address: str) -> None:
    with pytest.raises(ValueError, match="1 to 65535"):
        parse_address(address)


def test_bootstrap_takes_several_addresses() -> None:
    expected = (("a", 1), ("b", 9091))
    assert parse_bootstrap("a:1, b") == expected
    assert parse_bootstrap(["a:1", "b"]) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", 2),
        ("acks", "some"),
        ("compression", "brotli"),
        ("linger_ms", -1),
        ("fetch_max_wait_ms", -1),
        ("batch_bytes", 0),
        ("buffer_bytes", -5),
        ("max_in_flight", 0),
        ("delivery_timeout_s", 0),
        ("request_timeout_s", 0),
        ("connect_timeout_s", 0),
        ("fetch_bytes", 0),
        ("fetch_partition_bytes", 0),
    ],
)
def test_an_error_names_the_setting_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(**{name: value})


def test_settings_are_encoded_as_in_requests_and_batches() -> None:
    assert Settings().required_acks == -1
    assert Settings(acks=-1).required_acks == -1
    assert Settings(acks=0).required_acks == 0
    assert Settings(compression="zstd").codec is Codec.ZSTD
