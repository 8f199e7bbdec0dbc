"""Settings of the broker and of topics: names, types, defaults, and the values in force.

Start with `settings`, the static settings; `live` holds the values in force, `topics` the settings of topics.
"""
