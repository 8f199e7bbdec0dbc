"""Read partition directories offline: beside a running broker, after a crash, or from a copy.

Start with `partition` (a partition's directory: its bounds, offsets by time), then `log_file` and `index_files`.
`log verify` runs `checks`. Only `repair` writes; no module of this package maps a file.
"""
