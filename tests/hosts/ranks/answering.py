"""``answering.py ...``: hpcrl train with these arguments, where every update computes for 2 s, and pulls are timed.

Every pull of an actor that is alone on its rank takes all parameters, new or not. At the end such a rank prints the
quantiles of their durations.
"""

import sys
import time

import numpy as np

import hpcrl.algorithms.dqn
import hpcrl.roles.actor
from hpcrl.cli import main

UPDATE_SECONDS = 2.0

gradient, step = hpcrl.algorithms.dqn.Dqn.gradient, hpcrl.roles.actor.Actor.step
seconds: list[float] = []


def long_gradient(self, batch):
    end = time.monotonic() + UPDATE_SECONDS
    result = gradient(self, batch)
    while time.monotonic() < end:
        pass
    return result


def timed_step(self):
    if not self.ratio.actor_may_step():
        return step(self)
    self.replica.versions[:] = -1
    began = time.perf_counter()
    self.replica.pull()
    seconds.append(time.perf_counter() - began)
    return step(self)


hpcrl.algorithms.dqn.Dqn.gradient = long_gradient
hpcrl.roles.actor.Actor.step = timed_step
sys.argv[:1] = ["hpcrl", "train"]
try:
    main()
finally:
    if seconds:
        half, most, worst = (1e3 * np.quantile(seconds[5:], [0.5, 0.99, 1.0])).tolist()
        print(f"pulls {len(seconds) - 5} p50 {half:.1f} p99 {most:.1f} max {worst:.1f} ms", flush=True)
