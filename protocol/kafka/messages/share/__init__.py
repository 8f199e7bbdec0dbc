"""Messages of share groups (KIP-932), by family: `state.py` has those between brokers that keep the delivery state."""
