"""Groups: one module per kind of group, their offsets, and what tools ask."""
