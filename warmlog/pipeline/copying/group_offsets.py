"""The offsets of a job's consumer group, which follow its commits so that the lag can be monitored."""

from collections.abc import Callable

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.offsets import Positions
from warmlog.pipeline.source.options import ReadOptions


class GroupOffsets:
    """Commits the offsets of the group in the options, if any. `is_behind`: whether the last commit failed."""

    def __init__(self, options: ReadOptions, warn: Callable[[str], None]) -> None:
        self._options = options
        self._warn = warn
        self.is_behind = False

    def commit(self, positions: Positions | None) -> None:
        """Commit the positions of a job; log a failure."""
        options = self._options
        if options.group is None or options.brokers is None or not positions:
            return
        from warmlog.pipeline.source.remote import commit_offsets  # imports the client

        offsets = {key: at.offset for key, at in positions.items()}
        try:
            commit_offsets(options.brokers, options.group, offsets)
            self.is_behind = False
        except PipelineError as error:
            self.is_behind = True
            self._warn(f"offsets of group {options.group} not committed: {error}")
