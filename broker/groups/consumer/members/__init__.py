"""The members of a consumer group: declarations, joining, reconciliation, leaving, and deadlines."""
