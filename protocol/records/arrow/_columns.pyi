# The compiled version of `columns.ColumnBuilder`.

from protocol.records.arrow.columns import ColumnBuilder as ColumnBuilder
