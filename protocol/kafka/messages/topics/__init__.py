"""Topics and partitions: which there are, where they are, and changes of both."""
