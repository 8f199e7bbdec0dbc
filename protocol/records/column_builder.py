"""Chooses the twin of the column builder: the compiled one where it was built, else the pure one.

Everybody imports it from here. Owns: the choice, which follows that of the record codec (`codec.compiled`).
"""

from typing import TYPE_CHECKING

from protocol.records.codec import compiled

__all__ = ["ColumnBuilder"]

if TYPE_CHECKING or not compiled:
    from protocol.records.columns import ColumnBuilder
else:
    try:
        from protocol.records._columns import ColumnBuilder
    except ImportError:  # built one by one, each may be missing
        from protocol.records.columns import ColumnBuilder
