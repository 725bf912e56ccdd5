"""Shape check of models for text."""

from sordino.core.errors import ModelError


def check_text(model: str, shape: tuple[int, ...]) -> None:
    """Raise `ModelError` unless shape is (time,)."""
    if len(shape) != 1:
        raise ModelError(f"{model} needs text, records of whole numbers of shape (time,), not {shape}.")
