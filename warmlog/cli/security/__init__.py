"""Secure a broker before its first start: certificates, an administrator and ACLs; and read the audit log."""
