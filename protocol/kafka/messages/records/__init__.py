"""Records: Produce, Fetch, and the offsets of logs."""
