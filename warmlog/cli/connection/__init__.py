"""How commands connect to a broker: encrypted (`tls`), and logged in (`login`)."""
