"""Decode requests to values and encode responses to fields through the codec of the API table."""

from typing import Any

from tests.protocol.kafka.messages import TABLES, body, frame, parsed, reply_body, with_defaults
from warmlog.protocol.kafka.api import API_BY_KEY, Call, Codec

ID_A, ID_B = b"a" * 16, b"b" * 16
NAMES = {ID_A: "alpha"}


def versions(key: int, first: int = 0) -> list[int]:
    api = API_BY_KEY[key]
    return list(range(max(api.first, first), api.last + 1))


def decode_request(key: int, version: int, values: dict[str, Any]) -> Any:
    """Encode the fields as a request frame and decode it."""
    api = API_BY_KEY[key]
    return (
        Codec(topic_names=NAMES.get)
        .decode(frame(api, version, body(f"{api.name}Request", api, version, values)))
        .request
    )


def encode_response(key: int, version: int, response: Any, request: Any = None) -> dict[str, Any]:
    """Encode the response and return the fields that a client reads."""
    api = API_BY_KEY[key]
    pieces = Codec().encode(Call(api, version, 7, "", request), response, throttle_ms=0)
    return parsed(f"{api.name}Response", api, version, reply_body(api, version, pieces))


def expected(key: int, version: int, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, with the default for those that the version does not have."""
    return with_defaults(TABLES[f"{API_BY_KEY[key].name}Response"], version, values)
