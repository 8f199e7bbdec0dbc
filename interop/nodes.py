"""Several nodes of one cluster: started together, killed together."""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, Self, TypeVar


class Place(NamedTuple):
    """Where a process runs: its listen address, and a command prefix (`ip netns exec NAME`)."""

    host: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


LOOPBACK = Place()


class Node(Protocol):
    """A process that can be killed, and its address for Kafka's clients."""

    @property
    def bootstrap(self) -> str:
        """Its address."""

    def kill(self) -> None:
        """Kill the process if it is running."""


N = TypeVar("N", bound=Node)


class Nodes(Generic[N]):
    """Nodes by id. A context manager: started on entering, killed on leaving and if the start fails."""

    def __init__(self, nodes: Mapping[int, N]) -> None:
        self.nodes = dict(nodes)

    def start(self) -> None:
        """Start all nodes, and wait until they are ready."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill all nodes."""
        for node in self.nodes.values():
            node.kill()

    def __getitem__(self, number: int) -> N:
        return self.nodes[number]

    def __iter__(self) -> Iterator[N]:
        return iter(self.nodes.values())

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, for Kafka's clients."""
        return ",".join(node.bootstrap for node in self)
