"""Sockets: accept, receive frames, send replies; and the HTTP listener for people and Prometheus."""
