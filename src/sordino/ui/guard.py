"""Who may talk to the server: whoever was given its token, from a page of its own.

The server listens on the loopback interface, which all users of a machine share, and which every page of a browser can
reach. So each request needs a secret; the name of the host must be that of the loopback interface, since a page whose
name was bound to it by a trick (DNS rebinding) sends its own name; and requests of other pages are refused.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from email.message import Message
from hmac import compare_digest

LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?\Z")
LENGTH = 32  # random bytes of a secret


def secret() -> str:
    """Return a new secret for an address or a cookie."""
    return secrets.token_urlsafe(LENGTH)


@dataclass
class ViewGate:
    """The secrets of a server, and what they open."""

    port: int
    token: str = field(default_factory=secret, repr=False)  # in the address that the terminal shows
    ticket: str = field(default_factory=secret, repr=False)  # in the address that a browser is started with: works once
    session: str = field(default_factory=secret, repr=False)  # in the cookie

    @property
    def cookie(self) -> str:
        """The name of the cookie, which differs between servers, as a browser sends cookies to all ports of a host."""
        return f"sordino-{self.port}"

    def set_cookie(self) -> str:
        """Return the header that gives a browser the cookie."""
        return f"{self.cookie}={self.session}; Path=/; HttpOnly; SameSite=Strict"

    def own_page(self, headers: Message) -> bool:
        """Return whether a request names this machine as its host, and comes from a page of the server or from none."""
        hosts, origins = headers.get_all("Host") or [], headers.get_all("Origin") or []
        if len(hosts) != 1 or not LOOPBACK.match(hosts[0]):
            return False
        return all(origin == f"http://{hosts[0]}" for origin in origins)

    def entered(self, token: str) -> bool:
        """Return whether an address holds the token, or the ticket, which is then used up."""
        if _same(token, self.token):
            return True
        fits = _same(token, self.ticket)
        if fits:
            self.ticket = secret()
        return fits

    def known(self, headers: Message) -> bool:
        """Return whether a request holds the cookie and was not made by another page on this machine."""
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return False
        sent = [text.strip().partition("=") for header in headers.get_all("Cookie") or [] for text in header.split(";")]
        return any(name == self.cookie and _same(value, self.session) for name, _, value in sent)


def _same(given: str, known: str) -> bool:
    return compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())
