"""The server.

Net -> api -> partitions -> log. `broker.app` wires the layers together; each one imports only those after it.
"""
