# The compiled version of `columns.ColumnBuilder`.

from warmlog.protocol.records.arrow.columns import ColumnBuilder as ColumnBuilder
