"""Replace `cython` while modules that Cython can compile run as Python: its types and decorators do nothing.

Such a module begins with

    from warmlog import uncompiled as cython

    if cython.compiled:
        import cython

which makes Cython use its own `cython` in the rest of the module. A block `if cython.compiled:` is only compiled; all
other code also runs as Python, so it must not rely on numbers that would wrap in C.
"""

from typing import Any, TypeVar

T = TypeVar("T")

compiled = False

bint = bool
double = float
longlong = Py_ssize_t = int


def cclass(decorated: T) -> T:
    """Do nothing to a class or a function."""
    return decorated


cfunc = final = inline = cclass


def exceptval(*_value: object, check: bool = False) -> Any:  # noqa: ARG001
    """Do nothing to a function."""
    return cclass


def declare(kind: type[T], *, visibility: str = "private") -> T:  # noqa: ARG001
    """Return an initial value."""
    return kind()
