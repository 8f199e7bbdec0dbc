"""Estimate the size of a request or a response by the number of its values."""

from typing import Any

from protocol.request import Value
from protocol.response import FetchResponse, ProduceResponse

_FLAT = (ProduceResponse, FetchResponse)  # measured on every turn, and their partitions hold few values


def weight(value: Any, limit: int) -> int:
    """Count a value and the values nested in it, stopping soon after `limit`."""
    if isinstance(value, _FLAT):
        return len(value.partitions)
    total = 1
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if type(field) is tuple:
            total += len(field)
            for each in field:
                if total > limit or not isinstance(each, Value):
                    break
                total += weight(each, limit - total) - 1
    return total
