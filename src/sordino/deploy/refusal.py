"""The error by which a site refuses what a server asks for; its text goes to the server."""

from __future__ import annotations

from sordino.core.errors import SordinoError


class Refusal(SordinoError):  # noqa: N818 (it is an answer, not a fault)
    """A site refuses a request. The text is made from the request and the policy alone, never from data."""
