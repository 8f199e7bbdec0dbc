"""Log unusual conditions of the data directories at startup: offline, lost, missing, accessible to every user."""

import logging
import os
import stat

from warmlog.broker.log.directory.data_directories import DataDirectories

logger = logging.getLogger(__name__)


def report_directories(directories: DataDirectories, *, is_alone: bool) -> None:
    """Log conditions. In a cluster, `broker.clustered` compares directories with the store later. Raises OSError."""
    for path, reason in directories.offline.items():
        logger.error("data directory %s is offline until the next startup: %s", path, reason)
    for (topic, partition), what in directories.lost.items():
        logger.error("%s-%d is offline until the next startup: %s", topic, partition, what)
    for directory in directories.live:
        if (mode := stat.S_IMODE(os.stat(directory.path).st_mode)) & stat.S_IRWXO:
            logger.info(
                "data directory %s: every user of the machine has access (mode %o); to restrict it: chmod 750 %s",
                directory.path,
                mode,
                directory.path,
            )
    if is_alone:
        for what in directories.gone.values():
            logger.warning("data directory %s", what)
