"""`python -m warmlog`: the command line, where the installed script is not on the path."""

from warmlog.cli import main

main()
