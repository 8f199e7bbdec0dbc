"""`--nodes auto`: a node for each core, unless the data directory already determines how it is served."""

import logging
from typing import TYPE_CHECKING

from warmlog.broker.cluster.local import STORE
from warmlog.cli.nodes.options import MAX_NODES
from warmlog.cli.nodes.plan import check_store, known_ids, standalone_directory

if TYPE_CHECKING:
    from warmlog.broker.settings.settings import Settings

logger = logging.getLogger(__name__)


def automatic_count(settings: "Settings", cores: int) -> int | None:
    """Return the number of nodes, or None for a standalone broker; log it with the reason. Raises CannotStart.

    1. A directory that holds nodes keeps their number, whatever the number of cores.
    2. The directory of a standalone broker is served by one.
    3. Otherwise each available core gets a node. A single core gets a standalone broker.
    """
    check_store(settings)
    cores = min(cores, MAX_NODES)
    has = f"{cores} {'core is' if cores == 1 else 'cores are'} available"
    known, first = known_ids(settings), settings.data_paths[0]
    if known:
        count = max(1, known[-1] - settings.node_id + 1)
        more = f"; for more nodes, give their number: --nodes {cores}" if count < cores else ""
        logger.info("--nodes auto: %s holds %s, which it keeps; %s%s", first, _nodes(count), has, more)
        return count
    if (alone := standalone_directory(settings)) is not None:
        more = "; nodes need another --data-dir" if cores > 1 else ""
        logger.info("--nodes auto: %s has the data of a standalone broker, which serves it; %s%s", alone, has, more)
        return None
    if cores == 1 and not (first / STORE).exists():
        logger.info("--nodes auto: a standalone broker, since %s", has)
        return None
    logger.info("--nodes auto: %s, since %s", _nodes(cores), has)
    return cores


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
