"""The version of Sordino, which a server and its sites must share."""

VERSION = "0.1.0"
