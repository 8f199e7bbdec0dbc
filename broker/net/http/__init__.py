"""Metrics and health over HTTP. Begin at `http_listener`."""
