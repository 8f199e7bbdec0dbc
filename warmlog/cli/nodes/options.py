"""The values of the options of `serve` that concern nodes."""

from typing import Any, Final

import click

MAX_NODES: Final = 64


class SharedSocket(click.ParamType[tuple[str, int]]):
    """The name of a listener, and the descriptor of a socket that `serve --nodes` has opened for it."""

    name = "listener and descriptor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return (name, descriptor)."""
        listener, separator, descriptor = value.rpartition("=")
        if not (separator and listener and descriptor.isdecimal()):
            self.fail(
                f"{value!r}: expected LISTENER=DESCRIPTOR, which `serve --nodes` passes to its nodes.", param, ctx
            )
        return listener, int(descriptor)
