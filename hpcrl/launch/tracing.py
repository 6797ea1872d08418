"""Which methods of which objects are timed where a run is traced (``log.trace``)."""

from collections.abc import Iterator, Sequence
from typing import Any

from hpcrl.replay.distributed import DistributedLanes
from hpcrl.roles.timeline import Timeline

Timed = tuple[Any, str, str]
"""An object, the name of its method, and the activity that this is."""


def trace(timeline: Timeline, roles: Sequence) -> None:
    """Put a clock around what the roles of a rank do."""
    for role in roles:
        for thing, method, activity in PARTS.get(role.kind, _none)(role):
            background = activity == "write"
            setattr(thing, method, timeline.timed(activity, getattr(thing, method), background=background))


def _none(role) -> Iterator[Timed]:
    yield from ()


def _actor(actor) -> Iterator[Timed]:
    yield actor.replica, "pull", "pull"
    if hasattr(actor, "sampler"):
        yield actor.sampler.policy, "decide", "infer"
        for group in actor.sampler.groups:
            for method in ("send", "receive") if hasattr(group.env, "send") else ("step",):
                yield group.env, method, "simulate"
    else:
        yield actor.policy, "act", "infer"
        yield actor.env, "step", "simulate"
        if isinstance(actor.lanes, DistributedLanes):
            yield actor.lanes, "flush", "push"


def _simulator(simulator) -> Iterator[Timed]:
    for env in simulator.envs:
        yield env, "step", "simulate"


def _learner(learner) -> Iterator[Timed]:
    yield learner.update, "pull", "pull"
    yield learner.update, "give", "push"
    yield learner.algorithm, "gradient", "gradient"
    if hasattr(learner, "replay"):
        yield learner.replay, "sample", "sample"
    if hasattr(learner.update, "reduction"):
        yield learner.update.reduction, "sum", "reduce"


def _server(server) -> Iterator[Timed]:
    if hasattr(server, "apply"):
        yield server, "apply", "apply"
    for vector in (getattr(server, "params", None), getattr(server, "targets", None)):
        if hasattr(vector, "publish"):
            yield vector, "publish", "publish"


def _evaluator(evaluator) -> Iterator[Timed]:
    yield evaluator.episodes, "step", "evaluate"


def _monitor(monitor) -> Iterator[Timed]:
    yield monitor.writer, "perform", "write"


def _state_writer(writer) -> Iterator[Timed]:
    yield writer, "write", "write"
    for owner in writer.owners:
        yield owner, "cut", "copy"


PARTS = {
    "actor": _actor,
    "simulator": _simulator,
    "learner": _learner,
    "parameter_server": _server,
    "evaluator": _evaluator,
    "monitor": _monitor,
    "state_writer": _state_writer,
}
