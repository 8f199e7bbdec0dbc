"""Metrics, health and the console over HTTP. Start with `http_listener`."""
