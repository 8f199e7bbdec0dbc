"""Read partition directories offline: beside a running broker, after a crash, or from a copy.

Start with `partition` (a partition's directory: its bounds, offsets by time), then `segment` (log files and indexes).
Nothing here writes, locks or maps a file, or imports the command line or the pipeline.
"""
