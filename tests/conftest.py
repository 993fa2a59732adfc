"""What holds for every test."""

from __future__ import annotations

import hypothesis

# A busy machine is slow, not wrong: an example's time is no reason to fail.
hypothesis.settings.register_profile("harness", deadline=None)
hypothesis.settings.load_profile("harness")
