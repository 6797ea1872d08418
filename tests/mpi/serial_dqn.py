"""DQN in one process, without any of hpcrl's replay, roles or transport: what the distributed one must equal."""

import numpy as np
import torch

from hpcrl.envs import make_env
from hpcrl.networks import make_network
from hpcrl.seeding import generator, seed_sequence, torch_seed


def train(config) -> np.ndarray:
    """Parameters, float32 ``[P]``, after ``config.run.total_updates`` updates."""
    run, learning, explore, seed = config.run, config.learning, config.exploration, config.run.seed
    env = make_env(config.env.simulators, seed_sequence(seed, "actor env", 0), **config.env.arguments())
    torch.manual_seed(torch_seed(seed, "network", 0))
    online, target = (make_network("mlp", config.network.hidden, (1, 10, 5), 3) for _ in range(2))
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adagrad(
        online.parameters(),
        lr=learning.learning_rate,
        eps=learning.optimizer_epsilon,
        initial_accumulator_value=learning.adagrad_initial_accumulator,
    )
    act_rng, learn_rng = generator(seed, "actor", 0), generator(seed, "learner", 0)
    frame, lanes, steps, updates = env.reset(), [[] for _ in range(env.num_envs)], 0, 0
    while updates < run.total_updates:
        progress = min(updates / explore.decay_length, 1)
        epsilon = explore.epsilon_start + (explore.epsilon_end - explore.epsilon_start) * progress
        explores, action = act_rng.random(env.num_envs) < epsilon, act_rng.integers(3, size=env.num_envs)
        with torch.no_grad():
            greedy = online(torch.from_numpy(env.observation)).argmax(1).numpy()
        action = np.where(explores, action, greedy)
        step = env.step(action)
        for e in np.flatnonzero(~step.reset):
            lanes[e].append((frame[e], action[e], step.reward[e], step.terminated[e]))
            if step.episode_over[e]:
                lanes[e].append((step.final_frame[e], None, 0, False))  # the last state of an episode; never acted in
        frame, steps = step.frame, steps + int((~step.reset).sum())
        due = (steps - config.replay.learning_starts_steps) * learning.training_intensity
        while due >= (updates + 1) * learning.batch_size and updates < run.total_updates:
            rows = draw(lanes, learning.batch_size, learn_rng, config.replay.capacity_steps // env.num_envs)
            s, a, r, end, s2 = (np.array(column) for column in zip(*rows, strict=True))
            with torch.no_grad():
                best = target(torch.from_numpy(s2)).max(1).values
                y = torch.tensor(r).float().clip(-1, 1) + learning.discount * (1 - torch.tensor(end).float()) * best
            q = online(torch.from_numpy(s)).gather(1, torch.from_numpy(a.astype(np.int64))[:, None])[:, 0]
            optimizer.zero_grad()
            torch.nn.functional.huber_loss(q, y).backward()
            optimizer.step()
            updates += 1
            if updates % learning.target_period_updates == 0:
                target.load_state_dict(online.state_dict())
    return torch.cat([p.detach().reshape(-1) for p in online.parameters()]).numpy()


def draw(lanes, batch_size: int, rng, capacity: int) -> list[tuple]:
    """Uniform transitions (s, a, r, terminated, s'); the newest record of a lane has no successor yet."""
    lows = [max(0, len(lane) - (capacity - 2)) for lane in lanes]
    index = [(e, i) for e, lane in enumerate(lanes) for i in range(lows[e], len(lane) - 1)]
    rows = [None] * batch_size
    while missing := [b for b, row in enumerate(rows) if row is None]:
        for b, k in zip(missing, rng.integers(len(index), size=len(missing)), strict=True):
            lane, i = lanes[index[k][0]], index[k][1]
            if lane[i][1] is not None:
                rows[b] = (lane[i][0][None], lane[i][1], lane[i][2], lane[i][3], lane[i + 1][0][None])
    return rows
