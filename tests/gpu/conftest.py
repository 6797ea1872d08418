"""What runs on a GPU; skipped, with the reason, where there is none. `jobs/gpu_check.sh` runs it all."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        why = "torch is built without CUDA" if torch.version.cuda is None else "no GPU that torch can use"
        pytest.skip(f"needs a GPU: {why} (torch {torch.__version__})")
    return torch.device("cuda:0")
