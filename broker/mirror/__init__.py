"""Mirror topics and consumer groups of another cluster, the source.

Start with `service.MirrorService`. `plan` decides about changes of topics, `source` queries the source, `offsets`
copies the committed offsets of groups.
"""
