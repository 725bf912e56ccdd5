import sys
from pathlib import Path

import pytest
import torch

from sordino.gradients import engine

sys.path.insert(0, str(Path(__file__).parent))  # for `import reference`


@pytest.fixture(autouse=True)
def _seeded():
    seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    seed(0)


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch):
    """Models and losses of these tests keep nothing from call to call; those of tests/boundary do, and are asked for
    the same record as often as the package asks."""
    monkeypatch.setattr(engine, "AGAIN", 2)
