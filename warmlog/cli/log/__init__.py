"""`warmlog log`: commands that read or repair the files of a data directory, with or without a running broker.

One module per command. `segment_json` and `group_record_json` define the objects that `dump` prints.
"""
