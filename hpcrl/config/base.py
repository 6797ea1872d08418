"""What the sections of a configuration are made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Strict

# Strict, so that `servers = true` or `servers = "4"` is a fault and not a silent 1 or 4.
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]

MODULE_ATTRIBUTE = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


class Section(BaseModel):
    """One table of the file: unknown keys are faults, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)
