"""The arithmetic that networks compute in."""

from contextlib import AbstractContextManager

import torch

from hpcrl.networks.making import FRAME_KINDS


def cpu_has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AMX or AVX-512 BF16)."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags


def resolve_precision(precision: str, kind: str, device: str) -> torch.dtype:
    """dtype of the network's arithmetic: ``"auto"`` takes bfloat16 for convolutions where hardware has it."""
    if precision == "auto":
        fast = torch.cuda.is_bf16_supported() if device.startswith("cuda") else cpu_has_fast_bfloat16()
        precision = "bfloat16" if fast and kind in FRAME_KINDS else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def autocast(device: str, dtype: torch.dtype) -> AbstractContextManager:
    """Context in which networks compute in ``dtype``; master weights stay float32."""
    return torch.autocast(device.split(":")[0], dtype, enabled=dtype != torch.float32)
