"""The columns of a table for rows of a topic, with the names and types of the data source."""

from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.types import normal

NEEDED = ("partition", "offset")  # needed to account for each row


def check_columns(columns: tuple[str, ...], topics: int) -> None:
    """Raise PipelineError unless rows have topic, partition and offset. `topics`: number of topics in the table."""
    needed = NEEDED if topics == 1 else ("topic", *NEEDED)
    missing = [name for name in needed if name not in columns]
    if missing:
        raise PipelineError(f"a table needs the columns {', '.join(missing)}: without them no row can be accounted for")


def check_column(table: str, name: str, actual: Any) -> None:
    """Raise PipelineError unless the table has a column of this name and type. `actual`: its Arrow type, or None."""
    from warmlog.pipeline.source.arrow import TYPES

    if actual is None:
        raise PipelineError(
            f"{table} has no column {name}: add it ({TYPES[name]}), or choose others by -o columns=NAME,..."
        )
    if not normal(actual).equals(TYPES[name]):
        raise PipelineError(f"{table}: column {name} is {actual}, and the topic's is {TYPES[name]}")
