# The compiled version of `columns.ColumnBuilder`.

from protocol.records.columns import ColumnBuilder as ColumnBuilder
