"""What a model for text asks of a record's shape."""

from sordino.core.errors import ModelError


def check_text(model: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 1:
        raise ModelError(f"{model} needs text, records of whole numbers of shape (time,), not {shape}.")
