"""The formats of snappy and lz4 blocks, as Kafka's clients write and read them. `compression` is the entry module."""
