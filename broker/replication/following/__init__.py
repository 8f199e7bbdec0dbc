"""Follow partitions: fetch records from their leaders, in sessions, and append them to logs."""
