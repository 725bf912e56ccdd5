"""Configure the documentation site: `make docs` writes it into docs/_site, and no page of it needs a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

DOCS = Path(__file__).parent

project = "Sordino"
author = "the contributors of Sordino"
copyright = "the contributors of Sordino; licensed under Apache-2.0"

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_site"]
root_doc = "index"
nitpicky = True
highlight_language = "text"  # of indented blocks, most of which are commands
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

html_theme = "furo"
html_title = "Sordino"
html_static_path = ["_static"]
html_css_files = ["sordino.css", "drawings.css"]
html_js_files = ["reading.js"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True


class Mentions(SphinxTransform):
    """Turn plain mentions of pages, such as docs/data.md, into links.

    Some pages are written by programs, which name other pages by their path in the repository.
    """

    default_priority = 100
    mention = re.compile(r"docs/([\w/-]+)\.md")

    def apply(self, **kwargs: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            if isinstance(text.parent, nodes.TextElement) and not _is_fixed(text):
                parts = list(self._parts(str(text)))
                if len(parts) > 1:
                    text.parent.replace(text, parts)

    def _parts(self, text: str) -> Any:
        end = 0
        for found in self.mention.finditer(text):
            if (DOCS / f"{found[1]}.md").exists():
                yield nodes.Text(text[end : found.start()])
                link = addnodes.pending_xref(
                    "", nodes.inline("", found[1]), refdomain="std", reftype="doc", refexplicit=True,
                    reftarget=f"/{found[1]}", refdoc=self.env.docname, refwarn=True,
                )  # fmt: skip
                yield link
                end = found.end()
        yield nodes.Text(text[end:])


def _is_fixed(text: nodes.Text) -> bool:
    """Return whether a text is code, or belongs to a link already."""
    node: Any = text.parent
    while node is not None:
        if isinstance(node, nodes.literal | nodes.literal_block | nodes.reference | addnodes.pending_xref | nodes.raw):
            return True
        node = node.parent
    return False


class Drawings(SphinxPostTransform):
    """Put the drawings of docs/drawings into the pages, where they follow the theme that the reader chose."""

    default_priority = 5

    def run(self, **kwargs: Any) -> None:
        for image in list(self.document.findall(nodes.image)):
            if image["uri"].startswith("drawings/"):
                drawing = re.sub(r"<style>.*?</style>\n?", "", (DOCS / image["uri"]).read_text(), flags=re.DOTALL)
                image.replace_self(nodes.raw("", f'<div class="drawing-frame">{drawing}</div>', format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what this file adds to Sphinx."""
    app.add_transform(Mentions)
    app.add_post_transform(Drawings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
