"""The values of the options of `serve` that concern nodes."""

from typing import Any, Final

import click

AUTO: Final = "auto"
MAX_NODES: Final = 64


class NodeCount(click.IntRange):
    """A number of nodes, or AUTO."""

    name = "number or auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or AUTO."""
        if value == AUTO:
            return AUTO
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither a number of nodes nor {AUTO}.", param, ctx)
        return super().convert(value, param, ctx)


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
