"""Changes of who may log in (`credentials`), what they may do (`acls`) and how much (`quotas`), in the store."""
