"""Shape check of models for pictures."""

from sordino.core.errors import ModelError


def check_picture(model: str, shape: tuple[int, ...], least: int, most: int | None = None) -> None:
    """Raise `ModelError` unless shape is (channels, height, width) with sides from `least` to `most` pixels."""
    if len(shape) == 3 and min(shape[1:]) >= least and (most is None or max(shape[1:]) <= most):
        return
    sides = f"sides of {least} pixels or more" if most is None else f"sides of {least} to {most} pixels"
    raise ModelError(f"{model} needs pictures (channels, height, width) with {sides}, not {shape}. Try linear or mlp.")
