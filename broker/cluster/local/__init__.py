"""A store in one process, in a SQLite file: for a standalone broker, or for several brokers on one machine.

Start with `local_store`. `store_file` is the file; `server` and `socket_store` are the two ends of a Unix socket, for
the processes of `serve --nodes`.
"""

STORE = "store.sqlite"  # the name of the file of `serve --nodes`
