"""Find out whether a broker still runs, from the way its machine answers."""

from collections.abc import Sequence

import trio

from warmlog.broker.cluster.values import Endpoint

TIMEOUT_S = 1.0


async def listens(endpoints: Sequence[Endpoint]) -> bool:
    """Return False only if every address refuses connections: its machine answers, and nobody listens there."""
    for endpoint in endpoints:
        try:
            with trio.fail_after(TIMEOUT_S):
                stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        except OSError as error:
            if not _is_refusal(error):
                return True
        except trio.TooSlowError:
            return True
        else:
            await trio.aclose_forcefully(stream)
            return True
    return not endpoints


def _is_refusal(error: OSError) -> bool:
    """Whether every attempt behind an error was refused."""
    cause = error.__cause__
    causes = cause.exceptions if isinstance(cause, ExceptionGroup) else (cause or error,)
    return all(isinstance(each, ConnectionRefusedError) for each in causes)
