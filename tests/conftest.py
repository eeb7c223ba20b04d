"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ramet", deadline=None)  # speed is never asserted in a test
settings.load_profile("ramet")
