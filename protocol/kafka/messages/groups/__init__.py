"""Groups: one module per kind of group, committed offsets, and administration."""
