"""``raising.py WHERE CONFIG RUN_DIR [key=value...]``: hpcrl train, in which a role breaks on purpose after a while."""

import sys
import time

import hpcrl.roles.actor
import hpcrl.roles.learner
import hpcrl.roles.monitor
import hpcrl.roles.parameter_server
from hpcrl.cli import main

WHERE, CONFIG, RUN_DIR, *OVERRIDES = sys.argv[1:]


def break_down():
    print("raising-at", time.monotonic(), flush=True)
    if WHERE == "hang":
        time.sleep(1000)
    raise ZeroDivisionError("on purpose")


def breaking(step, after: int = 50):
    calls = 0

    def broken(self, *args):
        nonlocal calls
        calls += 1
        if calls == after and self.index == 0:
            break_down()
        return step(self, *args)

    return broken


if WHERE == "writer thread":
    submit = hpcrl.roles.monitor.Writer.submit
    hpcrl.roles.monitor.Writer.submit = lambda self, task: submit(self, break_down)
else:
    role = {
        "parameter_server": hpcrl.roles.parameter_server.ParameterServer,
        "actor": hpcrl.roles.actor.Actor,
        "hang": hpcrl.roles.actor.Actor,
        "learner": hpcrl.roles.learner.Learner,
        "monitor": hpcrl.roles.monitor.Monitor,
    }[WHERE]
    role.step = breaking(role.step)

sys.argv = ["hpcrl", "train", CONFIG, "--run-dir", RUN_DIR]
sys.argv += [part for override in OVERRIDES for part in ("--set", override)]
main()
