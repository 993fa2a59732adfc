"""Access control of the live page: token, cookie, Host and Origin of each request."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from dataclasses import dataclass, field

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class Access:
    """The secrets of one server process and its addresses.

    Only the printed URL contains the token. The server exchanges the token for a cookie, so that the token is not in
    the browser's history. Browsers send a cookie to all ports of a host, so the cookie has a random path.
    """

    address: str
    """The IP address on which the server listens."""
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    """Value of the cookie."""
    path: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(9)}/", repr=False)
    """Prefix of all paths of the page, and the cookie's path."""

    @property
    def url(self) -> str:
        """Return the URL to print."""
        return f"http://{_in_url(_reachable(self.address))}:{self.port}/?token={self.token}"

    @property
    def cookie_name(self) -> str:
        """Return the name of the cookie, which contains the port."""
        return f"harness_serve_{self.port}"

    def host_allowed(self, host: str | None) -> bool:
        """Return True if a Host header names this server. Another name may indicate a DNS rebinding attack."""
        name, colon, port = (host or "").rpartition(":")
        if not colon or port != str(self.port):
            return False
        address = ipaddress.ip_address(self.address)
        if address.is_unspecified:  # every address of this machine, but no DNS name
            return name in _LOOPBACK_NAMES or _is_ip(name.strip("[]"))
        return name == _in_url(self.address) or (address.is_loopback and name in _LOOPBACK_NAMES)

    def token_matches(self, value: str | None) -> bool:
        """Return True if a request has the token; the comparison takes constant time."""
        return hmac.compare_digest((value or "").encode(errors="replace"), self.token.encode())

    def cookie_matches(self, value: str | None) -> bool:
        """Return True if a request has the cookie; the comparison takes constant time."""
        return hmac.compare_digest((value or "").encode(errors="replace"), self.cookie.encode())


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _reachable(address: str) -> str:
    """Return an address that a browser on this machine can open."""
    ip = ipaddress.ip_address(address)
    if not ip.is_unspecified:
        return address
    return "127.0.0.1" if ip.version == 4 else "::1"


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
