"""Administration: topics, and what the files of their partitions look like."""
