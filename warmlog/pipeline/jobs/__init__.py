"""The jobs of `warmlog pipeline` except `table`: each plans splits, runs a function over them, and sums the results.

Start with `count`, the smallest. `audit` is the largest; it reads segments through `audit_segment`.
"""
