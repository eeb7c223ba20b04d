"""``python -m ramet.cli``."""

from ramet.cli import main

__all__: list[str] = []

main()
