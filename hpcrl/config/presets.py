"""What a protocol, an environment, an optimizer or an algorithm decides for keys that are left unset."""

from typing import Any

ATARI_DEFAULTS = {"frame_skip": 4, "stack": 4, "max_episode_frames": 108_000}
PLAIN_DEFAULTS = {"frame_skip": 1, "stack": 1, "max_episode_frames": 0}
OPTIMIZER_DEFAULTS = {
    "sgd": {"learning_rate": 0.01, "optimizer_epsilon": 0.0},
    "rmsprop": {"learning_rate": 2.5e-4, "optimizer_epsilon": 1e-5},
    "adagrad": {"learning_rate": 0.01, "optimizer_epsilon": 1e-10},
    "adam": {"learning_rate": 6.25e-5, "optimizer_epsilon": 1.5e-4},
}
"""RMSProp: dqn_zoo (epsilon 0.01 / 32^2). Adam: Dopamine. AdaGrad: torch's own; Gorila published no rate."""


ALGORITHM_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "a2c": {
        "learning": {
            "optimizer": "rmsprop",
            "learning_rate": 7e-4,
            "optimizer_epsilon": 1e-5,
            "rmsprop_decay": 0.99,
            "rmsprop_centered": False,
            "max_gradient_norm": 0.5,
        },
        "policy": {
            "horizon_steps": 5,
            "trace_decay": 1.0,
            "epochs": 1,
            "minibatches": 1,
            "normalize_advantages": False,
            "value_weight": 0.25,
        },
        "exploration": {"evaluation_epsilon": 0.0},
    },
    "ppo": {
        "learning": {
            "optimizer": "adam",
            "learning_rate": 2.5e-4,
            "optimizer_epsilon": 1e-5,
            "max_gradient_norm": 0.5,
        },
        "exploration": {"evaluation_epsilon": 0.0},
    },
    "impala": {
        "learning": {
            "optimizer": "rmsprop",
            "learning_rate": 6e-4,
            "optimizer_epsilon": 0.01,
            "rmsprop_decay": 0.99,
            "rmsprop_centered": False,
            "max_gradient_norm": 40.0,
        },
        "policy": {
            "horizon_steps": 20,
            "trace_decay": 1.0,
            "epochs": 1,
            "minibatches": 1,
            "normalize_advantages": False,
        },
        "exploration": {"evaluation_epsilon": 0.0},
    },
    "ga3c": {
        "learning": {
            "optimizer": "rmsprop",
            "learning_rate": 3e-4,
            "optimizer_epsilon": 0.1,
            "rmsprop_decay": 0.99,
            "rmsprop_centered": False,
            "max_gradient_norm": 0.0,
        },
        "policy": {
            "horizon_steps": 5,
            "trace_decay": 1.0,
            "epochs": 1,
            "minibatches": 1,
            "normalize_advantages": False,
            "value_weight": 1.0,
        },
        "exploration": {"evaluation_epsilon": 0.0},
    },
    "pqn": {
        "network": {"layer_norm": True},
        "learning": {
            "optimizer": "adam",
            "learning_rate": 2.5e-4,
            "optimizer_epsilon": 1e-5,
            "max_gradient_norm": 10.0,
        },
        "policy": {"horizon_steps": 32, "trace_decay": 0.65, "epochs": 2, "minibatches": 32},
        "exploration": {"epsilon_end": 0.001, "evaluation_epsilon": 0.0},
    },
}
"""What an algorithm takes for keys left unset. A2C: Accelerated Methods, with the RMSProp of its baselines; PPO:
Schulman et al. 2017, as CleanRL has it; IMPALA: Espeholt et al. 2018, of Atari; GA3C: its published code; PQN: Gallici
et al. 2024, with Adam for its RAdam."""

PROTOCOLS: dict[str, dict[str, Any]] = {
    "nature": {
        "sticky_probability": 0.0,
        "noop_max": 30,
        "full_action_space": False,
        "life_loss": "terminate",
        "fire_reset": False,
        "stuck_frames": 0,
    },
    "dopamine": {
        "sticky_probability": 0.25,
        "noop_max": 0,
        "full_action_space": False,
        "life_loss": "ignore",
        "fire_reset": False,
        "stuck_frames": 0,
    },
    "machado": {
        "sticky_probability": 0.25,
        "noop_max": 0,
        "full_action_space": True,
        "life_loss": "ignore",
        "fire_reset": False,
        "stuck_frames": 0,
    },
    "saber": {
        "sticky_probability": 0.25,
        "noop_max": 0,
        "full_action_space": True,
        "life_loss": "ignore",
        "fire_reset": False,
        "stuck_frames": 18_000,
        "max_episode_frames": 21_600_000,
    },
    "custom": {},
}
"""What each training protocol fixes: of Mnih et al. 2015, Dopamine, Machado et al. 2018, and SABER (Toromanoff et al.
2019), whose episodes have no limit but 5 minutes without a reward (100 hours stand for none). None presses FIRE for the
agent."""

EVALUATION_PROTOCOLS: dict[str, dict[str, Any]] = {
    "own": {},
    "noop": {
        "sticky_probability": 0.0,
        "noop_min": 1,
        "noop_max": 30,
        "max_episode_frames": 18_000,
        "stuck_frames": 0,
    },
    "human": {"sticky_probability": 0.0, "noop_max": 0, "max_episode_frames": 108_000, "stuck_frames": 0},
    "sticky": {"sticky_probability": 0.25, "noop_max": 0, "max_episode_frames": 108_000, "stuck_frames": 0},
    "saber": {
        "sticky_probability": 0.25,
        "noop_max": 0,
        "max_episode_frames": 21_600_000,
        "stuck_frames": 18_000,
        "full_action_space": True,
    },
}
"""What each protocol of an evaluation fixes of the environment. ``own``: as in training. ``noop`` and ``human``: Nair
et al. 2015, section 5.1. ``sticky``: Machado et al. 2018. ``saber``: Toromanoff et al. 2019."""
