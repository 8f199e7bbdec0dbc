"""Topics and partitions: metadata, creation and deletion, assignment to brokers and log directories."""
