"""Who asks: what a handler is told beside the request."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One connection's session, and a key for what is kept of it elsewhere.

    `protocol_version` is None until the client has said hello (native listener).
    `peer` and `local` are (host, port): where the client is, and the address at which it reached us.
    """

    listener: str
    peer: tuple[str, int]
    local: tuple[str, int]
    principal: str = "anonymous"
    client_id: str = ""
    protocol_version: int | None = None
