"""The server.

Net -> api -> partitions -> log. `broker.app` wires it together; each line imports only those below it.
"""
