"""The Flower app of a federation: a thin shim, which `sordino deploy init` copies."""
