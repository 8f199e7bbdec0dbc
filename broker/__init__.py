"""The server: net -> api -> partitions -> log. `broker.app` wires it together; each line imports only those below it."""
