"""A store in one process, on a SQLite file: of a broker by itself, or of brokers on one machine.

Start with `local_store`. `store_file` is the file; `server` and `socket_store` are the two ends of a Unix socket, for
the processes of `serve --nodes`.
"""

STORE = "store.sqlite"  # the name of the file of `serve --nodes`
