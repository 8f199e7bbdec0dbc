"""The stored state of a consumer group: its records and indexes (`group`)."""
