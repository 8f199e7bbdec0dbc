"""Messages of share groups (KIP-932), by family; brokers exchange those of `state.py` to store the delivery state."""
