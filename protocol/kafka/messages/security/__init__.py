"""Logins, delegation tokens, ACLs, quotas."""
