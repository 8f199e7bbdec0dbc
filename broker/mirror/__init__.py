"""Keep topics and consumer groups here as they are in another cluster, the source.

Start with `service.MirrorService`. `plan` decides what to do about topics, `source` asks the source what it has,
`offsets` copies the committed offsets of groups.
"""
