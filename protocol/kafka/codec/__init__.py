"""One codec for every Kafka message: tables of fields, and two engines that interpret them.

Start with `schema.py` (the tables), then `plan.py` (a table resolved for one version). The pure engine runs a plan in
Python (`interpreter.py`), the compiled one in C (`_compiled.pyx`); `engine.py` chooses.
"""
