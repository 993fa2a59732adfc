"""The content of the live page: named JSON texts, each with the version of its last change."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping


class PageState:
    """Parts that one thread publishes and other threads read.

    A viewer sends its version and receives the parts that changed since then. The server therefore stores no state per
    viewer, and a slow viewer receives several changes at once.
    """

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._version = 0
        self._parts: dict[str, tuple[int, str]] = {}
        """Name -> (version of the last change, JSON); `null` for a removed part."""

    def publish(self, texts: Mapping[str, str]) -> bool:
        """Replace all parts.

        Args:
            texts: name -> JSON on one line.

        Returns:
            True if a part changed.
        """
        with self._lock:
            removed = {name: "null" for name, (_, text) in self._parts.items() if name not in texts and text != "null"}
            changed = {
                name: text
                for name, text in {**texts, **removed}.items()
                if name not in self._parts or self._parts[name][1] != text
            }
            if changed:
                self._version += 1
                self._parts |= {name: (self._version, text) for name, text in changed.items()}
            return bool(changed)

    def changes_since(self, event_id: str | None) -> tuple[str, str] | None:
        """Return the present event id and a JSON object of the parts that changed since an earlier event.

        Args:
            event_id: the viewer's last event; None, or an id of another server, for all parts.

        Returns:
            None if no part changed.
        """
        viewer_version = self._viewer_version(event_id)
        with self._lock:
            if viewer_version == self._version:
                return None
            changed = [f'"{name}":{text}' for name, (version, text) in self._parts.items() if version > viewer_version]
            return f"{self._epoch}-{self._version}", "{" + ",".join(changed) + "}"

    def _viewer_version(self, event_id: str | None) -> int:
        epoch, _, digits = (event_id or "").partition("-")
        version = int(digits) if epoch == self._epoch and digits.isascii() and digits.isdigit() else 0
        return version if version <= self._version else 0
