"""Arrays whose bytes are kept, for values that appear unchanged in many replies."""

from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

MAX_LAYOUTS = 4  # clients of a broker use few versions


class KeptArray(tuple[T, ...]):  # noqa: SLOT001  # no subclass of tuple can have slots
    """A tuple that keeps its bytes in the layouts that were written last.

    Writers use them in arrays that are `kept` (`schema.Array`), and write any other tuple there as usual. A layout is
    the step of an engine, so the bytes take the memory of up to MAX_LAYOUTS replies for as long as the tuple lives.
    """

    written: dict[Any, bytes]

    def __new__(cls, values: Iterable[T]) -> "KeptArray[T]":
        """Keep nothing yet."""
        made = super().__new__(cls, values)
        made.written = {}
        return made

    def keep(self, layout: Any, data: bytes) -> None:
        """Keep the bytes of a layout. Safe to call in a worker while others read `written`."""
        if len(self.written) >= MAX_LAYOUTS:
            self.written = {}
        self.written[layout] = data
