import pytest

from sordino.core.errors import SpecError
from sordino.privacy.trust import Viewer, viewer


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("server", Viewer("server")),
        ("public", Viewer("public")),
        (" client ", Viewer("client")),
        ("server+2", Viewer("server", 2)),
        ("server + 1 client", Viewer("server", 1)),
        ("server + 12 clients", Viewer("server", 12)),
    ],
)
def test_viewers_have_names(text, found):
    assert viewer(text) == found and viewer(str(found)) == found


@pytest.mark.parametrize(
    "text", ["", "servers", "server+", "server+-1", "public+2", "neighbour", None, 3, "server+1e9"]
)
def test_other_names_are_refused(text):
    with pytest.raises(SpecError, match="viewer must be one of"):
        viewer(text)
