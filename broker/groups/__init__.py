"""Consumer groups: who is a member, in which generation, and what has been committed."""
