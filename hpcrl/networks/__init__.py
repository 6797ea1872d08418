"""Networks, and their parameters as one flat vector."""

from hpcrl.networks.architectures import convolutional, impala, mlp
from hpcrl.networks.device import Recorded, Upload
from hpcrl.networks.forward import Forward
from hpcrl.networks.layers import Dueling, PixelConv2d, WideLinear, channels_last
from hpcrl.networks.making import FRAME_KINDS, count_parameters, make_network
from hpcrl.networks.policies import count_policy_parameters, make_policy_network
from hpcrl.networks.precision import autocast, resolve_precision
from hpcrl.networks.replica import FlatParameters, Replica

__all__ = [
    "FRAME_KINDS",
    "Dueling",
    "FlatParameters",
    "Forward",
    "PixelConv2d",
    "Recorded",
    "Replica",
    "Upload",
    "WideLinear",
    "autocast",
    "channels_last",
    "convolutional",
    "count_parameters",
    "count_policy_parameters",
    "impala",
    "make_network",
    "make_policy_network",
    "mlp",
    "resolve_precision",
]
