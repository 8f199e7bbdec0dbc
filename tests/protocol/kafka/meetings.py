"""Where messages and values meet: a request as it is decoded, a response as it is encoded."""

from typing import Any

from protocol.kafka.api import API_BY_KEY, Call, Codec
from tests.protocol.kafka.messages import TABLES, body, frame, parsed, reply_body, with_defaults

ID_A, ID_B = b"a" * 16, b"b" * 16
NAMES = {ID_A: "alpha"}


def versions(key: int, first: int = 0) -> list[int]:
    api = API_BY_KEY[key]
    return list(range(max(api.first, first), api.last + 1))


def asked(key: int, version: int, values: dict[str, Any]) -> Any:
    """The request that these fields are."""
    api = API_BY_KEY[key]
    return (
        Codec(topic_names=NAMES.get)
        .decode(frame(api, version, body(f"{api.name}Request", api, version, values)))
        .request
    )


def told(key: int, version: int, response: Any, request: Any = None) -> dict[str, Any]:
    """The fields that a client is told."""
    api = API_BY_KEY[key]
    pieces = Codec().encode(Call(api, version, 7, "", request), response, throttle_ms=0)
    return parsed(f"{api.name}Response", api, version, reply_body(api, version, pieces))


def expected(key: int, version: int, values: dict[str, Any]) -> dict[str, Any]:
    """Fields, with those that a version has not as they are by default."""
    return with_defaults(TABLES[f"{API_BY_KEY[key].name}Response"], version, values)
