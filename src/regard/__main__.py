"""`python -m regard`: the command `regard`."""

from .cli import main

if __name__ == "__main__":
    main()
