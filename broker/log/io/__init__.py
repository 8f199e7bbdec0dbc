"""Files, mappings and the page cache: everything below the log's own data structures.

Start with `disk` and `files`; `residency` decides whether a read may touch memory or has to go through a worker.
"""
