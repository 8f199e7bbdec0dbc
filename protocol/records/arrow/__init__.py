"""Records as Arrow columns, for the pipeline.

Start with `columns`, which gives the layout. `column_builder` imports the compiled builder if it was built.
"""
