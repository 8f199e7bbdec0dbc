"""The assignor `sticky`, the only one that Kafka 4.4 has for streams groups. Start reading in `sticky.py`."""
