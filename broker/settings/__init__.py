"""Settings of the broker and of topics: names, types, defaults, and the values in force.

Start with `settings`.
"""
