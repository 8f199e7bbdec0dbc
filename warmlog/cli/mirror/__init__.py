"""`warmlog mirror`: run a broker that mirrors topics of another cluster; show and promote the copies.

Start with `run`, which needs neither the client nor tables; `copies` has the commands that ask a running broker.
"""

from warmlog.cli.mirror.run import mirror

__all__ = ["mirror"]
