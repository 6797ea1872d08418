"""What old gradients do to DQN on MinAtar's Breakout, without anything of hpcrl: torch, MinAtar and one process.

    python docs/studies/delay_alone.py DELAY [LEARNING_RATE [SEED]]     # pip install minatar

Settings are those of minatar_breakout.toml; every gradient is computed at the parameters of DELAY updates before.
Prints the mean training return in each tenth of the frames.
"""

import copy
import sys
from collections import deque

import numpy as np
import torch
from minatar import Environment
from torch import nn

FRAMES, SIMULATORS, BATCH, STARTS, INTENSITY, TARGET_PERIOD, LONGEST = 30_000, 8, 32, 1_600, 4, 100, 1_000


def look(game: Environment) -> np.ndarray:
    """uint8 ``[400]``: 10x10 pixels in 4 channels, 0 or 1."""
    return game.state().transpose(2, 0, 1).reshape(-1).astype(np.uint8)


def tensor(frames: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frames.astype(np.float32))


def train(delay: int, learning_rate: float, seed: int) -> list[tuple[int, float]]:
    """Return the frame at which each episode ended, and its return."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    games = [Environment("breakout", sticky_action_prob=0.1) for _ in range(SIMULATORS)]
    for i, game in enumerate(games):
        game.seed(100 * seed + i)
        game.reset()
    actions = games[0].minimal_action_set()
    network = nn.Sequential(nn.Linear(400, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
    target, old = copy.deepcopy(network), copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, eps=1e-5)
    history = deque([copy.deepcopy(network.state_dict())], maxlen=delay + 1)
    states, successors = (np.zeros((FRAMES, 400), np.uint8) for _ in range(2))
    acted, rewards, ends = np.zeros(FRAMES, np.int64), np.zeros(FRAMES, np.float32), np.zeros(FRAMES, np.float32)
    updates, episodes = 0, []
    score, length = np.zeros(SIMULATORS), np.zeros(SIMULATORS, int)
    now = np.stack([look(game) for game in games])
    for frames in range(0, FRAMES, SIMULATORS):
        epsilon = max(1 - 0.95 * frames / 10_000, 0.05)
        with torch.no_grad():
            greedy = network(tensor(now)).argmax(1).numpy()
        action = np.where(rng.random(SIMULATORS) < epsilon, rng.integers(3, size=SIMULATORS), greedy)
        for i, game in enumerate(games):
            reward, over = game.act(actions[action[i]])
            at, after = frames + i, look(game)
            states[at], acted[at], rewards[at], ends[at], successors[at] = now[i], action[i], reward, over, after
            score[i], length[i] = score[i] + reward, length[i] + 1
            if over or length[i] >= LONGEST:
                episodes.append((at, score[i]))
                score[i], length[i] = 0, 0
                game.reset()
            now[i] = look(game)
        while (frames + SIMULATORS - STARTS) * INTENSITY >= (updates + 1) * BATCH:
            drawn = rng.integers(frames + SIMULATORS, size=BATCH)
            with torch.no_grad():
                best = target(tensor(successors[drawn])).max(1).values
            goal = tensor(rewards[drawn]) + 0.99 * (1 - tensor(ends[drawn])) * best
            old.load_state_dict(history[0])
            value = old(tensor(states[drawn])).gather(1, torch.from_numpy(acted[drawn])[:, None])[:, 0]
            old.zero_grad()
            nn.functional.huber_loss(value, goal).backward()
            for parameter, former in zip(network.parameters(), old.parameters(), strict=True):
                parameter.grad = former.grad
            optimizer.step()
            history.append(copy.deepcopy(network.state_dict()))
            updates += 1
            if updates % TARGET_PERIOD == 0:
                target.load_state_dict(network.state_dict())
    return episodes


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    torch.set_num_threads(1)
    ended, returns = np.array(train(int(given[0]), float(given.get(1, 1e-3)), int(given.get(2, 1)))).T
    tenth = (ended * 10 / FRAMES).astype(int)
    print(*(f"{returns[tenth == k].mean():.2f}" for k in range(10)))
