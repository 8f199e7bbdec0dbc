"""The members of a consumer group: what they declare, how they come, change over and go, and their deadlines."""
