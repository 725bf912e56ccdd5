"""Client-level privacy for Flower apps whose training code is not ours; `sordino.flower` has the public names."""
