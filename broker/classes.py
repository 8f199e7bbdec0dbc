"""Marks of classes for mypyc. As Python, they do nothing.

`acyclic`: objects of the class are in no reference cycles, so the garbage collector need not know of them: they take 16
bytes less, and a collection does not hold the event loop for them. `allow_interpreted_subclasses`: tests
derive from the class in Python.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["mypyc_attr"]

C = TypeVar("C")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: bool) -> Callable[[C], C]:
        """Return a decorator that returns its class."""
        return lambda decorated: decorated
