"""`python -m regard`: the command line."""

from .cli import main

main()
