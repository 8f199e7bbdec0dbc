"""Consumer groups: membership, the streams of members, administration.

Start with `membership` (join, heartbeat, commit, leave), then `group_stream`, which reads the assigned partitions.
`delivery_tracker` tracks which delivered records may be committed; `admin` lists, describes and alters groups.
"""
