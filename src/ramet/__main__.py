"""``python -m ramet``."""

from ramet.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
