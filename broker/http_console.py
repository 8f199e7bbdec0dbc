"""Connect the console to a broker's handlers."""

from collections.abc import Callable

from warmlog.broker.frontend import Core, Frontend
from warmlog.broker.log.io.page_faults import PageFaults
from warmlog.broker.metrics.loop_guard import LoopGuard
from warmlog.broker.metrics.requests import wall_clock_ms
from warmlog.broker.net.http.http_listener import Console, HttpListener
from warmlog.broker.settings.documentation import durability_sentence


def connect_console(
    web: HttpListener | None, core: Core, frontend: Frontend, guard: LoopGuard, page_faults: PageFaults
) -> None:
    """Serve the console over HTTP, unless a setting turns it off. Call it after the frontend has made its listeners."""
    if web is None or not core.settings.warmlog_ui:
        return

    def open_console() -> Callable[[], Console]:
        from warmlog.broker.console.console import BrokerConsole  # late: it would delay the first reply
        from warmlog.broker.console.visit import Tools

        def make() -> Console:
            tools = Tools(
                dispatcher=frontend.dispatcher,
                partitions=core.partitions,
                node=core.node,
                directories=core.directories,
                metrics=core.metrics,
                moves=core.moves,
                reads=core.reads,
                guard=guard,
                page_faults=page_faults,
                cluster_id=core.directories.cluster_id,
                power_cut=durability_sentence(core.settings),
                access=None if frontend.guard is None else frontend.guard.access,
                clock_ms=wall_clock_ms,
            )
            return BrokerConsole(tools, frontend.pacer)

        return make

    web.open_console = open_console
