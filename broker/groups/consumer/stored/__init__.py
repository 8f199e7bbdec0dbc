"""What is stored of a consumer group: its records and indexes (`group`)."""
