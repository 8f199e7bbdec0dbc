"""Migration of archives, which versions 0.1 and 0.2 wrote, to Delta tables.

Start with `archive` (the layout of an archive), then `rows` (reading and checking its files) and `job`.
"""
