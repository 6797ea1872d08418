"""Runs of any length without training: a configuration and a run log with rows in every table."""

import numpy as np

from hpcrl.analysis import load
from hpcrl.config import from_dict, to_toml
from hpcrl.storage import schema
from hpcrl.storage.runlog import RunLog


def log_run(run_dir, *, seed=1, rows=120, game="Pong", protocol="nature", bundles=2, norms=False, **learning):
    """A run whose return rises from -20 to about 15 over 12M frames; the numbers follow from the seed alone."""
    run_dir.mkdir(parents=True, exist_ok=True)
    raw = {
        "run": {"seed": seed, "dir": str(run_dir)},
        "env": {"id": f"ALE/{game}-v5", "protocol": protocol},
        "topology": {"bundles": bundles},
        "learning": learning,
    }
    (run_dir / "config.toml").write_text(to_toml(from_dict(raw)))
    rng, log = np.random.default_rng(seed), RunLog(run_dir, {"seed": seed, "layers": '["conv", "head"]'})
    for k in range(1, rows + 1):
        row = {"wall_seconds": 90.0 * k, "total_frames": 100_000 * k, "global_update": 5000 * k}
        mean = -20.0 + 35.0 / (1 + np.exp((60 - k) / 12))
        score = float(np.round(mean + rng.normal(0, 2)))
        log.append("episodes", row | {"actor": 0, "simulator": 0, "episode_return": score, "length_steps": 1500})
        progress = dict.fromkeys(schema.TABLES["progress"], 0.0) | {
            "total_steps": 25_000 * k,
            "frames_per_second": rng.normal(1100, 40),
            "updates_per_second": rng.normal(55, 3),
            "epsilon": max(1 - k / 100, 0.1),
            "mean_return_100": mean,
            "staleness_mean": rng.normal(bundles - 1, 0.1),
            "training_intensity": 8.0,
            "gradients_accepted": 4900 * k,
            "replay_fill": min(k / 40, 1),
            "replay_age_steps": 20_000.0 * min(k / 40, 1) + rng.normal(0, 300),
            "mean_priority": 0.4 + rng.random() / 10,
            "learning_rate": 0.01,
            "loss": 0.02 + rng.random() / 100,
            "mean_q": mean / 20,
        }
        log.append("progress", progress | row)
        for layer in range(-1, 2) if norms else ():
            sizes = {"parameters": 30 + k / 10, "distance": np.sqrt(k), "gradient": rng.random(), "step": rng.random()}
            log.append("norms", row | {"learner": 0, "layer": layer, "step_updates": 2} | sizes)
        if k % 20 == 0:
            evaluation = {"episodes": 10, "mean_return": mean + 1, "std_return": 2.0, "epsilon": 0.05}
            log.append("evaluations", row | evaluation)
            for learner in range(bundles):
                for fate, delay, count in [(0, 0, 900), (0, 1, 3000), (0, 2, 700), (2, 9, 12), (3, -1, 4)]:
                    counted = {"learner": learner, "fate": fate, "delay_updates": delay, "count": count + k}
                    log.append("gradients", row | counted)
    log.close()
    return load(run_dir)
