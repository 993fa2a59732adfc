"""Names of devices: `cpu`, `cuda`, `cuda:1`, and `cuda:0,1` for several."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from harness.errors import ConfigurationError

_NUMBERED = re.compile(r"cuda:([0-9]{1,4})")


DEVICES_SOURCE = "--device, or `devices` in harness.yaml"
"""The origins of the names, for messages."""


def expand_devices(devices: Sequence[str]) -> tuple[str, ...]:
    """Return one name per judge: `cuda:0,1` becomes `cuda:0` and `cuda:1`, an empty sequence `cpu`."""
    names: list[str] = []
    for device in devices or ("cpu",):
        kind, _, units = device.partition(":")
        names += [f"{kind}:{unit.strip()}" for unit in units.split(",")] if units else [kind]
    return tuple(dict.fromkeys(names))


def parse_device(name: str, *, where: str = DEVICES_SOURCE) -> tuple[Literal["cpu", "cuda"], int]:
    """Return the kind and the number of one device; the number is 0 where the name has none.

    Args:
        where: origin of the name, for the message.

    Raises:
        ConfigurationError: the text is not the name of a device.
    """
    if name == "cpu":
        return "cpu", 0
    if name == "cuda":
        return "cuda", 0
    if numbered := _NUMBERED.fullmatch(name):
        return "cuda", int(numbered[1])
    raise ConfigurationError(
        f"no such device: {name or 'an empty name'}", where=where, remedy="devices: cpu, cuda, cuda:0 ..."
    )
