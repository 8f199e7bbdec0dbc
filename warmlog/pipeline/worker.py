"""What is done once in each of Spark's workers.

Owns: how a worker is settled before its first task of ours. Must not know: what the tasks do.

Spark keeps its Python workers, and has each collect garbage after every task. A full collection looks at all that
Spark, Arrow and we have imported, some 50,000 objects, which takes 35 ms: more than to count the records of a gigabyte.
So what is there at the first task, nearly all of it there for good, is taken out of collections; they then take 2 µs.
"""

import gc
from collections.abc import Callable
from functools import cache
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


@cache
def settle() -> None:
    """Spare later collections what is there now. In a worker, where all that is needed was imported; counts once."""
    gc.freeze()


def settled(work: Callable[[S], T], split: S) -> T:
    """What a function makes of a split, in a worker that is settled."""
    settle()
    return work(split)
