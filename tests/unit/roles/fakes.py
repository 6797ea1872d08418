"""Stand-ins for what roles talk to: replicas, rings, published vectors and counters, without MPI."""

import numpy as np

from hpcrl.roles.metrics import Reporter, decode


class FakeReplica:
    """Follows ``source`` (int64 versions of each shard, set by the test) and counts its pulls."""

    def __init__(self, source=(0,), size=8):
        self.source = np.array(source, np.int64)
        self.versions = np.full(len(self.source), -1, np.int64)
        self.gradients = np.zeros(size, np.float32)
        self.pulls = 0
        self.flat = self  # whose views are always in place

    def check(self):
        pass

    def pull(self):
        self.pulls += 1
        new = bool((self.versions != self.source).any())
        self.versions[:] = self.source
        return new

    @property
    def empty(self):
        return self.versions[0] < 0

    @property
    def global_update(self):
        return int(self.versions[0])

    def host_gradients(self):
        return self.gradients


class Reports:
    """A reporter whose reports the test reads."""

    def __init__(self, period_seconds=0.0):
        self.sent = []
        self.reporter = Reporter(self._send, period_seconds)

    def _send(self, record):
        self.sent.append(decode(record))
        return True

    def of(self, kind):
        return [values for k, _, values in self.sent if k == kind]


class MemoryVector:
    """A published vector of one shard, in this process."""

    def __init__(self):
        self.version, self.values = -1, None

    def publish(self, values, version):
        self.version, self.values = version, values.copy()
        return True

    def pull(self, out, versions):
        new = versions[0] != self.version
        out[:], versions[0] = self.values, self.version
        return new


class MemoryRings:
    """Rings of one record from some learners to one server, in this process; :meth:`of` is a learner's end."""

    def __init__(self, learners):
        self.records, self.answered = [None] * learners, [[] for _ in range(learners)]

    def of(self, learner):
        return _MemoryRing(self, learner)

    def waiting(self):
        return [record is not None for record in self.records]

    def oldest(self, learner):
        return self.records[learner]

    def pop(self, learners, answers):
        for learner in learners:
            self.records[learner] = None
            self.answered[learner].append([answers.get(learner, 0)])


class _MemoryRing:
    def __init__(self, rings, learner):
        self.rings, self.learner = rings, learner

    def drained(self):
        return self.rings.records[self.learner] is None

    def answers(self):
        answered, self.rings.answered[self.learner] = self.rings.answered[self.learner], []
        return answered

    def push(self, records):
        (parts,) = records.values()
        self.rings.records[self.learner] = np.concatenate([part.view(np.uint8) for part in parts])
        return True


class FakeCounters:
    """Counters that live in a dictionary; counts the looks at them."""

    def __init__(self, **values):
        self.values, self.looks = values, 0

    def get(self, name):
        self.looks += 1
        return self.values.get(name, 0)

    def set(self, name, value):
        self.values[name] = value

    def add(self, name, value):
        self.values[name] = self.values.get(name, 0) + value
        return self.values[name]


class FakeClock:
    """In place of the module ``time``."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now
