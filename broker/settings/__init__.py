"""Settings of the broker and of topics: names, types, defaults, and current values.

Start with `settings`, the static settings; `live` has the current values, `topics` the settings of topics.
"""
