"""A learning rule on minibatches by its name in the configuration."""

import importlib
from collections.abc import Callable

from hpcrl.algorithms.dqn import Dqn
from hpcrl.errors import ConfigError


def replay_algorithm(name: str) -> Callable[..., Dqn]:
    """What makes the rule: :class:`Dqn` for ``"dqn"``, else ``"module:attribute"``, called with the same arguments.

    Raises
    ------
    ConfigError
        It cannot be imported, or has no ``gradient``.
    """
    if name == "dqn":
        return Dqn
    module, _, attribute = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f'learning.algorithm: expected "module:attribute" that can be imported, got "{name}": {error}'
        ) from error

    def made(*arguments, **named):
        algorithm = make(*arguments, **named)
        if not callable(getattr(algorithm, "gradient", None)):
            raise ConfigError(
                f'learning.algorithm: expected "{name}" to make an object with gradient(batch), '
                f"got {type(algorithm).__name__}"
            )
        return algorithm

    return made
