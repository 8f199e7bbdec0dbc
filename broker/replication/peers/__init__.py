"""Connections to other brokers: pipelined requests of Kafka's protocol on trio, and views of leaders."""
