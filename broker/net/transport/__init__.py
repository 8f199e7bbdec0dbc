"""Transports of a connection's bytes. `transport` has the interface that `Channel` and `Sender` use."""
