"""What the roles tell the monitor, and how: fixed-size records through a ring, dropped (and counted) if it is full."""

import time
from collections import deque
from collections.abc import Callable

import numpy as np

FIELDS = {
    "episode": ("simulator", "episode_return", "length_steps", "total_frames", "global_update"),
    "actor": ("steps", "epsilon", "total_frames", "global_update"),
    "learner": (
        "updates",
        "trained",
        "loss",
        "mean_q",
        "replay_fill",
        "overwritten",
        "sampling_hidden",
        "replay_age",
        "mean_priority",
        "global_update",
    ),
    "policy": (
        "policy_loss",
        "value_loss",
        "entropy",
        "kl",
        "clipped",
        "gradient_norm",
        "diversity",
        "explained_variance",
        "lag",
        "global_update",
    ),
    "norm": ("layer", "parameters", "distance", "gradient", "step", "step_updates", "global_update"),
    "secondary": (
        "updates",
        "loss",
        "mean_return",
        "episodes",
        "parameters",
        "distance",
        "first_parameters",
        "first_distance",
        "global_update",
    ),
    "gradient": ("fate", "delay_updates", "count"),
    "order": (
        "total_frames",
        "global_update",
        "event",
        "shard",
        "target_version",
        "learner",
        "sequence",
        "accepted",
        "learning_rate",
    ),
    "span": ("activity", "background", "begin", "seconds"),
    "parameter_server": ("global_update", "accepted", "dropped", "staleness_sum", "learning_rate", "effective_rate"),
    "replay_host": ("dropped",),
    "evaluator": ("total_frames", "global_update", "episodes", "mean_return", "std_return", "epsilon"),
}
"""Values of a report by kind. Counts are totals since the rank started, but of gradients since the last report."""

ACTED, LEARNED, JUDGED = range(3)
"""Events of the recorded order."""

KINDS = tuple(FIELDS)
MOST_FIELDS = max(map(len, FIELDS.values()))
RECORD = np.dtype([("kind", "i4"), ("index", "i4"), ("values", "f8", MOST_FIELDS)])


def encode(kind: str, index: int, values: dict[str, float]) -> np.ndarray:
    """uint8 ``[RECORD.itemsize]``: one report."""
    record = np.zeros(1, RECORD)
    record["kind"], record["index"] = KINDS.index(kind), index
    record["values"][0, : len(FIELDS[kind])] = [values[name] for name in FIELDS[kind]]
    return record.view(np.uint8)


def decode(data: np.ndarray) -> tuple[str, int, dict[str, float]]:
    """Kind, index and values of what :func:`encode` gave."""
    record = data.view(RECORD)[0]
    kind = KINDS[record["kind"]]
    return kind, int(record["index"]), dict(zip(FIELDS[kind], record["values"].tolist(), strict=False))


class Reporter:
    """Sends the reports of this rank's roles; each kind at most once every ``period_seconds``, episodes always.

    Parameters
    ----------
    send : callable
        ``send(record)``: uint8 ``[RECORD.itemsize]`` to the monitor; never waits. Whether it was sent.
    period_seconds : float
    order : bool
        Whether to report every act, gradient and application in its order. None of these reports is ever dropped:
        they wait here where they cannot be sent.
    """

    def __init__(self, send: Callable[[np.ndarray], bool], period_seconds: float, order: bool = False):
        self.send, self.period, self.order = send, period_seconds, order
        self._waiting: deque[np.ndarray] = deque()
        self._due: dict[str, float] = {}

    def _is_due(self, kind: str) -> bool:
        now = time.monotonic()
        if now < self._due.get(kind, 0.0):
            return False
        self._due[kind] = now + self.period
        return True

    def _send(self, kind: str, index: int, **values: float) -> bool:
        return self.send(encode(kind, index, values))

    def send_waiting(self) -> bool:
        """Send what waits, as far as there is room; whether nothing is left."""
        while self._waiting and self.send(self._waiting[0]):
            self._waiting.popleft()
        return not self._waiting

    def _send_in_order(self, index: int, **values: float) -> None:
        self._waiting.append(encode("order", index, dict.fromkeys(FIELDS["order"], 0.0) | values))
        self.send_waiting()

    def acted(self, actor) -> None:
        """An actor took a step."""
        if self.order:
            for shard, version in enumerate(actor.replica.versions):
                self._send_in_order(
                    actor.index,
                    event=ACTED,
                    shard=shard,
                    global_update=version,
                    sequence=actor.steps,
                    total_frames=actor.total_frames,
                )

    def learned(self, learner) -> None:
        """A learner computed the gradient of a minibatch."""
        if self.order:
            versions = zip(learner.online.versions, learner.target.versions, strict=True)
            for shard, (version, target_version) in enumerate(versions):
                self._send_in_order(
                    learner.index,
                    event=LEARNED,
                    shard=shard,
                    global_update=version,
                    target_version=target_version,
                    learner=learner.index,
                    sequence=learner.updates,
                )

    def judged(self, server, *, learner: int, version: int, sequence: int, accepted: bool) -> None:
        """A server applied a gradient, or did not."""
        if self.order:
            self._send_in_order(
                server.index,
                event=JUDGED,
                shard=server.index,
                global_update=version,
                learner=learner,
                sequence=sequence,
                accepted=accepted,
                learning_rate=server.optimizer.learning_rate,
            )

    def spans(self, tracer) -> None:
        """What a rank did since this was last called, and when; none of these reports is dropped either."""
        for span in tracer.timeline.take():
            self._waiting.append(encode("span", tracer.rank, span._asdict()))
        self.send_waiting()

    def episode(self, actor, simulator: int) -> None:
        """A simulator of ``actor`` finished an episode: its raw, unclipped return."""
        self._send(
            "episode",
            actor.index,
            simulator=simulator,
            episode_return=actor.episode_return[simulator],
            length_steps=actor.episode_steps[simulator],
            total_frames=actor.total_frames,
            global_update=actor.replica.global_update,
        )

    def actor(self, actor) -> None:
        """An actor's counts."""
        if self._is_due("actor"):
            self._send(
                "actor",
                actor.index,
                steps=actor.acted_steps,
                epsilon=np.mean(actor.epsilon),
                total_frames=actor.total_frames,
                global_update=actor.replica.global_update,
            )

    def learner(self, learner) -> None:
        """A learner's counts, and what became of its gradients."""
        if self._is_due("learner"):
            for (fate, delay), count in list(learner.fates.items()):
                if self._send("gradient", learner.index, fate=fate, delay_updates=delay, count=count):
                    del learner.fates[fate, delay]
            for kind, values in learner.reports():
                self._send(kind, learner.index, **values)

    def server(self, server) -> None:
        """A server's counts and rates."""
        self.send_waiting()
        if self._is_due("parameter_server"):
            self._send(
                "parameter_server",
                server.index,
                global_update=server.version,
                accepted=server.accepted,
                dropped=server.dropped,
                staleness_sum=server.staleness_sum,
                learning_rate=server.optimizer.learning_rate,
                effective_rate=server.optimizer.effective_rate(),
            )

    def host(self, host) -> None:
        """A replay host's count of priorities that came too late."""
        if host.table is not None and self._is_due("replay_host"):
            self._send("replay_host", host.index, dropped=host.table.dropped)

    def norm(self, index: int, **values: float) -> None:
        """Norms of a layer of learner ``index``."""
        self._send("norm", index, **values)

    def secondary(self, **values: float) -> None:
        """An evaluation of the second learner."""
        self._send("secondary", 0, **values)

    def last_words(self, roles) -> None:
        """What the roles of this rank have to say at the end, whenever they last said something."""
        report = {
            "actor": self.actor,
            "learner": self.learner,
            "parameter_server": self.server,
            "replay_host": self.host,
            "tracer": self.spans,
        }
        for role in roles:
            if role.kind in report:
                self._due.clear()
                report[role.kind](role)
        # A server goes on stepping, and so does the monitor, which may be on its rank.
        while not self.send_waiting() and not any(role.kind == "parameter_server" for role in roles):
            time.sleep(0.001)

    def evaluation(self, index: int, **values: float) -> None:
        """A finished evaluation."""
        self._send("evaluator", index, **values)
