"""How the rows of a table are arranged in its files: partitions, and the order of rows.

Start with `spec` (the fields of an arrangement), then `sorting` (rows by partition and order, in bounded memory),
`in_order` (rows of arranged files in the order of offsets), and `delta` and `iceberg` (what the formats say).
"""
