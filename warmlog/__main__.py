"""`python -m warmlog`: the command line, for use if the installed script is not on the path."""

from warmlog.cli import main

main()
