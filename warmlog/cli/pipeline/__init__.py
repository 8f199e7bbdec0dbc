"""`warmlog pipeline`: the jobs of `warmlog.pipeline` as commands.

Start with `job`: the options, engine choice, progress, errors and reports that all commands share.
"""
