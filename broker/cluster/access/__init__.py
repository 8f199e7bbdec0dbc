"""Change credentials, ACLs, quotas and delegation tokens in the store."""
