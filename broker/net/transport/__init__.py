"""What carries the bytes of one connection. `transport` has the interface that `Channel` and `Sender` use."""
