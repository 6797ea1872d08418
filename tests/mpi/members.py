"""The algorithms, and the ways in which each can be run: ``python tests/mpi/members.py`` prints docs/algorithms.md.

`test_members` runs every cell of the table; where a cell is empty, the configuration refuses it, and says why.
"""

from pathlib import Path
from typing import NamedTuple

from hpcrl.config import load
from hpcrl.errors import ConfigError

CONFIG = Path(__file__).parents[2] / "configs" / "catch_serial.toml"
PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"

CATEGORICAL = ("network.distribution=categorical", "network.atoms=11", "network.support=[-1.0, 1.0]")
ROLLOUTS = ("env.simulators=16", "policy.horizon_steps=8")
PRIORITIZED = ("replay.sampling=prioritized",)
MEMBERS = {
    "DQN": (),
    "Double DQN": ("learning.double=true",),
    "Dueling DQN": ("network.dueling=true",),
    "n-step DQN": ("replay.n_step=3",),
    "Prioritised DQN": PRIORITIZED,
    "C51": CATEGORICAL,
    "QR-DQN": ("network.distribution=quantile", "network.atoms=10"),
    "epsilon-Rainbow": (
        *("learning.double=true", "network.dueling=true", "replay.n_step=3", *PRIORITIZED, *CATEGORICAL),
        "replay.priority_alpha=0.5",
    ),
    "PQN": ("learning.algorithm=pqn", *ROLLOUTS, "policy.minibatches=8"),
    "A2C": ("learning.algorithm=a2c",),
    "PPO": ("learning.algorithm=ppo", *ROLLOUTS),
    "IMPALA": ("learning.algorithm=impala",),
    "GA3C": ("learning.algorithm=ga3c",),
}
"""Keys that make an algorithm of DQN."""


class Way(NamedTuple):
    """A layout and who applies gradients."""

    layout: str
    update: str
    replay: str
    ranks: int
    simulator_ranks: int = 0

    @property
    def overrides(self) -> tuple[str, ...]:
        return (
            f"topology.layout={self.layout}",
            f"learning.update={self.update}",
            f"replay.place={self.replay}",
            f"topology.simulator_ranks={self.simulator_ranks}",
        )

    def __str__(self) -> str:
        return f"{self.layout}-{self.update}-{self.replay}" + ("-simulators" if self.simulator_ranks else "")


WAYS = (
    Way("serial", "server", "local", 1),
    Way("bundled", "server", "local", 3),
    Way("bundled", "server", "global", 3),
    Way("split", "server", "local", 3),
    Way("split", "server", "global", 3),
    Way("sampler_learner", "allreduce", "local", 2),
    Way("sampler_learner", "store", "local", 3),
    Way("sampler_learner", "allreduce", "local", 3, 2),
)


def refusal(member: str, way: Way) -> str:
    """Why a cell is empty; nothing where it is not."""
    try:
        load(CONFIG, [*MEMBERS[member], *way.overrides])
    except ConfigError as error:
        return str(error).splitlines()[1].strip()
    return ""


CELLS = [(member, way) for member in MEMBERS for way in WAYS if not refusal(member, way)]


def page() -> str:
    """The table, as Markdown."""
    lines = [
        "# Algorithms, layouts and ways of updating",
        "",
        "Each cell with a tick is run on catch by a test (`bash tests/run.sh --long tests/mpi/test_members.py`), and",
        "every algorithm has to learn it in the serial layout, from 6,500 steps, or 80,000 where each step is used",
        "once (A2C, IMPALA, GA3C). Replay memories are those of bundles or nodes (local), or one on the server ranks",
        "(global). An algorithm is DQN with these keys:",
        "",
        "| algorithm | keys, as the tests set them |",
        "|---|---|",
        *(f"| {name} | {', '.join(f'`{key}`' for key in keys) or 'none'} |" for name, keys in MEMBERS.items()),
        "",
        "| layout | " + " | ".join(way.layout for way in WAYS) + " |",
        "|---" * (len(WAYS) + 1) + "|",
        "| `learning.update` | " + " | ".join(way.update for way in WAYS) + " |",
        "| `replay.place` | " + " | ".join(way.replay for way in WAYS) + " |",
        "| `topology.simulator_ranks` | " + " | ".join(str(way.simulator_ranks) for way in WAYS) + " |",
    ]
    notes: dict[str, int] = {}
    for member in MEMBERS:
        whys = [refusal(member, way) for way in WAYS]
        marks = [f"({notes.setdefault(why, len(notes) + 1)})" if why else "✓" for why in whys]
        lines.append(f"| {member} | " + " | ".join(marks) + " |")
    if notes:
        lines += ["", "Empty cells are refused:", ""]
        lines += [f"{number}. `{why}`" for why, number in notes.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
