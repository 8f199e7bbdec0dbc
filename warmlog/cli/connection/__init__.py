"""How commands connect to a broker: TLS (`tls`) and login (`login`)."""
