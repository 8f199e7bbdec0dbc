"""How much there is in a request or a response."""

from typing import Any

from protocol.request import Value
from protocol.response import FetchResponse, ProduceResponse

_FLAT = (ProduceResponse, FetchResponse)  # on every turn; what their partitions hold is little


def weight(value: Any, limit: int) -> int:
    """Count a value and the values within it; counting stops soon after the limit."""
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
