"""A store for brokers on one machine: etcd's JSON gateway, as far as brokers use it, over a SQLite file.

Start with `server`. `durable` puts changes on the disk before anybody sees them, `journal` is the file.
"""

STORE = "store.sqlite"  # the name of the file
