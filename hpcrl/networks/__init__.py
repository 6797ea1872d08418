"""Networks, and their parameters as one flat vector."""

from hpcrl.networks.architectures import mlp, nature_dqn
from hpcrl.networks.layers import Dueling, PixelConv2d, WideLinear, channels_last
from hpcrl.networks.making import count_parameters, make_network
from hpcrl.networks.policies import count_policy_parameters, make_policy_network
from hpcrl.networks.precision import autocast, resolve_precision
from hpcrl.networks.replica import FlatParameters, Replica

__all__ = [
    "Dueling",
    "FlatParameters",
    "PixelConv2d",
    "Replica",
    "WideLinear",
    "autocast",
    "channels_last",
    "count_parameters",
    "count_policy_parameters",
    "make_network",
    "make_policy_network",
    "mlp",
    "nature_dqn",
    "resolve_precision",
]
