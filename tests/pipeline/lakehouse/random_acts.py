"""Random acts on a table that other programs set back: a job has to refuse unsound tables, and only those."""

import random
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.pipeline.conftest import DirectoryWriter
from warmlog.pipeline.errors import PipelineError


class RandomActs:
    """Copies a topic to a table, and accepts what was set back. `min_step`: offsets of the shortest copy in steps."""

    min_step: ClassVar = 3

    def __init__(self, writer: DirectoryWriter, directory: Path, seed: int) -> None:
        self.writer = writer
        self.directory = directory
        self.choose = random.Random(seed)

    def is_sound(self) -> bool:
        """Whether the rows are those below the positions."""
        raise NotImplementedError

    def is_complete(self) -> bool:
        """Whether the rows are those of the topic."""
        raise NotImplementedError

    def write(self) -> None:
        """Write records to the topic."""
        raise NotImplementedError

    def run(self, **how: Any) -> None:
        """Run a job to the end."""
        raise NotImplementedError

    def rewound(self) -> list[Any]:
        """Set positions back, and return the changes."""
        raise NotImplementedError

    def copy(self, **how: Any) -> None:
        if not self.is_sound():
            with pytest.raises(PipelineError, match=r"(took|brought) back rows"):
                self.run(**how)
            assert self.rewound()
        assert self.rewound() == []
        self.run(**how)
        assert self.is_complete()

    def copy_in_steps(self) -> None:
        self.copy(maxOffsetsPerTrigger=self.choose.randrange(self.min_step, 30))

    def accept(self) -> None:
        was_sound = self.is_sound()
        assert bool(self.rewound()) != was_sound
        assert self.is_sound()
