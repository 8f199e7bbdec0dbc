# What the compiled twin of `columns.ColumnBuilder` offers; see there for what it means.

from protocol.records.columns import ColumnBuilder as ColumnBuilder
