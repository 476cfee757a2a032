"""`python -m fdjax`: the command line."""

from fdjax.cli import main

if __name__ == "__main__":
    main()
