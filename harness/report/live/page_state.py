"""The live page's content: named parts as JSON texts, each with the version in which it changed last."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping


class PageState:
    """Parts that one thread publishes and other threads read.

    A viewer names the version that it has and gets what changed since, so that the server keeps nothing per viewer and
    a slow viewer gets several changes as one.
    """

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._version = 0
        self._parts: dict[str, tuple[int, str]] = {}
        """Name -> (version of the last change, JSON); `null` for a part that is gone."""

    def publish(self, texts: Mapping[str, str]) -> bool:
        """Replace all parts.

        Args:
            texts: name -> JSON on one line.

        Returns:
            True when anything changed.
        """
        with self._lock:
            gone = {name: "null" for name, (_, text) in self._parts.items() if name not in texts and text != "null"}
            changed = {
                name: text
                for name, text in {**texts, **gone}.items()
                if name not in self._parts or self._parts[name][1] != text
            }
            if changed:
                self._version += 1
                self._parts |= {name: (self._version, text) for name, text in changed.items()}
            return bool(changed)

    def changes_since(self, event_id: str | None) -> tuple[str, str] | None:
        """Return the present event id and one JSON object of the parts that changed after another one.

        Args:
            event_id: the last one that the viewer has; None, or one of another server: all parts.

        Returns:
            None when nothing changed.
        """
        known = self._known_version(event_id)
        with self._lock:
            if known == self._version:
                return None
            changed = [f'"{name}":{text}' for name, (version, text) in self._parts.items() if version > known]
            return f"{self._epoch}-{self._version}", "{" + ",".join(changed) + "}"

    def _known_version(self, event_id: str | None) -> int:
        epoch, _, version = (event_id or "").partition("-")
        known = int(version) if epoch == self._epoch and version.isascii() and version.isdigit() else 0
        return known if known <= self._version else 0
