"""Follow partitions: fetch them from their leaders, in sessions, and copy what was fetched to logs."""
