"""Files, mappings and the page cache, as the log sees them.

Start with `files`.
"""
