"""`warmlog share`: share groups (KIP-932), queues whose jobs are accepted one by one."""
