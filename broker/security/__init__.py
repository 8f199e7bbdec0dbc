"""Authentication, authorization and quotas: rules without sockets and storage. Start with `principal`."""
