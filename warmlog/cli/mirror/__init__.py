"""`warmlog mirror`: run a broker that mirrors topics of another cluster; show and promote the copies.

Start with `run`, which imports neither the client nor tables; `copies` has the commands that query a running broker.
"""

from warmlog.cli.mirror.run import mirror

__all__ = ["mirror"]
