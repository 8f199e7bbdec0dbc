"""The differences that are known, each with its reason. One that a full run does not find any more is reported."""

from interop.compare.difference import Expected

EXPECTED: list[Expected] = []
