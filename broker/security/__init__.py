"""Who sends a request, and what it may do. Begin at `principal`."""
