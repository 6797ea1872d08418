"""Experience replay: frames stored once, in one lane per simulator; stacks and n-step returns built when sampling."""

from hpcrl.replay.lanes import Lanes, LocalCursors, local_lanes, record_dtype
from hpcrl.replay.uniform import UniformReplay

__all__ = ["Lanes", "LocalCursors", "UniformReplay", "local_lanes", "record_dtype"]
