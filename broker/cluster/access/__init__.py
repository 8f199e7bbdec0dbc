"""Changes of who may log in (`credentials`) and of what they may do (`acls`), in the cluster's store."""
