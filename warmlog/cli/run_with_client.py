"""Commands that talk to a broker: one connection, one conversation, errors as one line.

Owns: how a command gets a client, and what becomes of the client's errors. Must not know: what is talked about.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, Unpack

from warmlog.cli.failure import Failure

if TYPE_CHECKING:
    from warmlog.client import AsyncClient
    from warmlog.client.settings import SettingNames

T = TypeVar("T")
CLIENT_NAME = "warmlog command line"


def converse(native: str, talk: "Callable[[AsyncClient], Awaitable[T]]", **settings: "Unpack[SettingNames]") -> T:
    """What `talk` gives, called with a client of the broker at `native`. Raises Failure, KeyboardInterrupt.

    On trio, because there Ctrl-C interrupts at once also what blocks, as a write to a pager that nobody scrolls.
    """
    import anyio  # with the client a quarter of a second, which `--help` need not take

    from warmlog.client import WarmlogError, connect

    settings.setdefault("client", CLIENT_NAME)

    async def conversation() -> T:
        async with connect(native, **settings) as client:
            return await talk(client)

    try:
        return anyio.run(conversation, backend="trio")
    except WarmlogError as error:
        raise Failure(error.message) from error
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt):  # it may strike in any of the client's tasks
            raise KeyboardInterrupt from group
        raise
