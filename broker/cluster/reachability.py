"""Find out whether a broker still runs, from the way its machine answers, and whether its event loop does."""

from collections.abc import Sequence

import trio

from warmlog.broker.cluster.values import Endpoint
from warmlog.protocol.kafka.peer import PeerProtocol
from warmlog.protocol.kafka.peer_apis import API_VERSIONS
from warmlog.protocol.kafka.values import ApiVersionsRequest
from warmlog.protocol.version import VERSION

TIMEOUT_S = 1.0
_GREETING = ApiVersionsRequest(software_name="warmlog", software_version=VERSION)


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


async def until_answer(endpoint: Endpoint) -> None:
    """Ask a Kafka listener for the versions that it knows, and return when it says anything, or ends the connection.

    A process that was stopped, or whose event loop is held up, accepts connections and is silent. Raises OSError if
    there is no connection.
    """
    _, request = PeerProtocol("probe").send(API_VERSIONS, _GREETING)
    stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    try:
        await stream.send_all(request)
        await stream.receive_some(1)
    except trio.BrokenResourceError:
        pass
    finally:
        await trio.aclose_forcefully(stream)


def _is_refusal(error: OSError) -> bool:
    """Whether every attempt behind an error was refused."""
    cause = error.__cause__
    causes = cause.exceptions if isinstance(cause, ExceptionGroup) else (cause or error,)
    return all(isinstance(each, ConnectionRefusedError) for each in causes)
