"""Ray is optional: its check, without importing it."""

from __future__ import annotations

from importlib.util import find_spec

from harness.errors import ConfigurationError

INSTALL = "pip install 'kernel-harness[cluster]'"


def require_ray() -> None:
    """Check that Ray is installed.

    Raises:
        ConfigurationError: it is not.
    """
    if find_spec("ray") is None:
        raise ConfigurationError("Ray is not installed, and --cluster needs it", where="--cluster", remedy=INSTALL)
