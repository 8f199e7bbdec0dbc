"""One codec for every Kafka message: tables of fields, and two engines that interpret them.

Start with `schema.py` (the tables), then `plan.py` (a table resolved for one version). The pure engine turns a
plan into Python source (`source.py`), the compiled one runs it (`_compiled.pyx`); `engine.py` chooses.
"""
