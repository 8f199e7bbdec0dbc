"""Import the compiled `ColumnBuilder` if it was built and `codec.compiled` is set, otherwise the pure Python one."""

from typing import TYPE_CHECKING

from warmlog.protocol.records.codec import compiled

__all__ = ["ColumnBuilder"]

if TYPE_CHECKING or not compiled:
    from warmlog.protocol.records.arrow.columns import ColumnBuilder
else:
    try:
        from warmlog.protocol.records.arrow._columns import ColumnBuilder
    except ImportError:  # extensions are built separately, so any of them may be missing
        from warmlog.protocol.records.arrow.columns import ColumnBuilder
