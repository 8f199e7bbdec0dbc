"""The jobs of `warmlog pipeline` beside `archive`: each plans splits, runs a function over them, and adds up.

Start with `count`, the smallest; `audit` is the largest, and reads segments by `audit_segment`.
"""
