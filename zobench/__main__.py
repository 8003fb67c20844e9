"""``python -m zobench``: the same as the command ``zobench``."""

from zobench.cli import main

if __name__ == "__main__":
    main()
