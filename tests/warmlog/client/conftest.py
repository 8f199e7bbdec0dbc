"""Everything here writes and flushes many small files."""

from tests.in_memory import tmp_path

__all__ = ["tmp_path"]
