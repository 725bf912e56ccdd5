import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `import reference`


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
