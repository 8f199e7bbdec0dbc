"""Secure a broker before its first start with certificates, an administrator and ACLs; read the audit log."""
