"""``hpcrl evaluate``: whole episodes by the protocols of the papers, in one process or spread over the ranks of a job.

Episodes are played in groups of a fixed size, each with random numbers and a batch of its own. Which rank plays a group
changes nothing in it, so a result is the same for any number of ranks.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcrl.analysis.runs import game_name
from hpcrl.analysis.scores import human_normalised, table, tables
from hpcrl.config import Config, from_dict
from hpcrl.envs import env_spec, make_games
from hpcrl.errors import EXIT_FAULT, EXIT_FINISHED, ConfigError, StorageError
from hpcrl.launch.launcher import check_world_size, is_launched, launcher_rank
from hpcrl.launch.protocols import protocol_arguments, starts_for
from hpcrl.seeding import generator, seed_sequence
from hpcrl.storage.starts import Starts
from hpcrl.types import GameStart

GROUP = 6
"""Episodes that are played together; 30, the published number, are five groups."""

RANDOM_PERIOD_FRAMES = 6

Policy = Callable[[np.ndarray, float], np.ndarray]
"""int64 ``[E]`` actions for observations ``[E, stack, ...]`` and a probability of a random action."""


class Result(NamedTuple):
    """What was played: one entry for each episode, in order."""

    returns: np.ndarray
    """float64 ``[N]`` raw points gained by the agent"""
    steps: np.ndarray
    """int64 ``[N]`` decisions of the agent"""


def play_once(env, policy: Policy, epsilon: float) -> Result:
    """One whole episode on each simulator; who has finished waits for the others."""
    env.reset()
    returns, steps = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
    playing = np.ones(env.num_envs, bool)
    while playing.any():
        step = env.step(policy(env.observation, epsilon))
        returns += np.where(playing, step.reward, 0)
        steps += playing
        playing &= ~step.episode_over
    return Result(returns, steps)


def play_group(
    arguments: Mapping[str, Any],
    make_policy: Callable[[np.random.Generator], Policy],
    group: int,
    *,
    epsilon: float,
    seed: int,
    starts: Sequence[GameStart] = (),
) -> Result:
    """The episodes ``group * GROUP`` to ``(group + 1) * GROUP - 1`` of an evaluation.

    Parameters
    ----------
    arguments
        Of `hpcrl.envs.make_games`.
    make_policy
        Makes a policy with random numbers of its own.
    group
    epsilon
        Probability of a random action.
    seed
        Of the whole evaluation.
    starts
        If there are any, episode ``i`` begins in number ``i`` modulo their count.
    """
    if starts:
        arguments = {
            **arguments,
            "starts": [starts[i % len(starts)] for i in range(group * GROUP, (group + 1) * GROUP)],
        }
    env = make_games(GROUP, seed_sequence(seed, "evaluation env", group), **arguments)
    try:
        return play_once(env, make_policy(generator(seed, "evaluation", group)), epsilon)
    finally:
        env.close()


def evaluate(episodes: int, play: Callable[[int], Result]) -> Result:
    """Play groups until there are so many episodes: all of them, or the share of this rank of an MPI job.

    Returns
    -------
    Result
        Of the whole evaluation, on every rank.
    """
    groups = range(-(-episodes // GROUP))
    results = _spread(groups, play) if is_launched(os.environ) else [play(group) for group in groups]
    return Result(*(np.concatenate(column)[:episodes] for column in zip(*results, strict=True)))


def _spread(groups: range, play: Callable[[int], Result]) -> list[Result]:
    from hpcrl.launch import mpi

    library = mpi.start()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    check_world_size(comm.size, library, os.environ)
    try:
        mine = {group: play(group) for group in groups[comm.rank :: comm.size]}
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        comm.Abort(EXIT_FAULT)
    merged = {group: result for of_rank in comm.allgather(mine) for group, result in of_rank.items()}
    return [merged[group] for group in groups]


def describe(result: Result, config: Config, *, protocol: str, epsilon: float, seed: int, starts: Starts | None) -> str:
    """What was evaluated and how, and what came out, in one sentence."""
    how = f"{config.env.protocol} protocol, as in training" if protocol == "own" else f"{protocol} protocol"
    if starts:
        how += f", {'surrogate ' if starts.surrogate else ''}starts by {starts.origin}"
    returns = result.returns
    return (
        f"{config.env.id} ({how}), epsilon {epsilon:g}, seed {seed}: mean return {returns.mean():.2f} +- "
        f"{returns.std():.2f} (standard deviation) over {len(returns)} episodes, from {returns.min():g} to "
        f"{returns.max():g}; {result.steps.mean():,.0f} steps each"
    )


class Player(NamedTuple):
    """Who plays, and how it was trained."""

    config: Config
    origin: str
    epsilon: float
    """of the evaluation, unless another is asked for"""
    make_policy: Callable[[np.random.Generator], Policy]


def trained_player(path: Path, checkpoint: str) -> Player:
    """An agent of a run, a checkpoint or a file of weights; raises as `hpcrl.launch.agents.load_agent`."""
    import torch

    from hpcrl.launch.agents import load_agent, make_policy

    torch.set_num_threads(1)  # a sum over threads depends on their number; ranks are how to use more cores
    agent = load_agent(path, checkpoint)
    origin = f"{agent.origin}, update {agent.global_update:,}"
    epsilon = agent.config.exploration.evaluation_epsilon
    return Player(agent.config, origin, epsilon, lambda rng: make_policy(agent, rng).act)


def random_player(env_id: str) -> Player:
    """Uniformly random actions, in Atari a new one every 6th frame (10 a second), as in the published scores."""
    atari = env_id.startswith("ALE/")
    config = from_dict({"env": {"id": env_id, **({"frame_skip": RANDOM_PERIOD_FRAMES} if atari else {})}})
    spec = env_spec(**config.env.arguments())
    if spec.continuous:
        raise ConfigError(f"expected an environment of discrete actions for --random, got {env_id}")
    origin = "random play" + (f", a new action every {RANDOM_PERIOD_FRAMES}th frame" if atari else "")
    return Player(config, origin, 1.0, lambda rng: lambda seen, epsilon: rng.integers(spec.num_actions, size=len(seen)))


def main(
    player: Player,
    *,
    protocol: str,
    episodes: int,
    epsilon: float | None,
    seed: int,
    starts_file: Path | None,
    max_episode_frames: int | None,
    output: Path | None,
) -> int:
    """Evaluate a player, print the result and, if asked, write it as JSON."""
    config = player.config
    epsilon = player.epsilon if epsilon is None else epsilon
    arguments = protocol_arguments(config, protocol, max_episode_frames)
    starts = starts_for(config, protocol, starts_file)
    given = starts.starts if starts else ()

    def play(group: int) -> Result:
        return play_group(arguments, player.make_policy, group, epsilon=epsilon, seed=seed, starts=given)

    result = evaluate(episodes, play)
    if is_launched(os.environ) and launcher_rank(os.environ) != "0":
        return EXIT_FINISHED
    print(player.origin)
    print(describe(result, config, protocol=protocol, epsilon=epsilon, seed=seed, starts=starts))
    for line in in_relation(game_name(config.env.id), protocol, result.returns.mean()):
        print(line)
    if output:
        how = {"protocol": protocol, "epsilon": epsilon, "seed": seed, "starts": str(starts_file or "")}
        how["surrogate_starts"] = bool(starts and starts.surrogate)
        _write_record(output, player, result, how)
    return EXIT_FINISHED


def _write_record(output: Path, player: Player, result: Result, how: Mapping[str, Any]) -> None:
    config = player.config
    record = {
        "player": player.origin,
        "environment": config.env.id,
        **how,
        "frames_per_step": env_spec(**config.env.arguments()).frames_per_step,
        "returns": result.returns.tolist(),
        "steps": result.steps.tolist(),
    }
    try:
        output.write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}") from error


def in_relation(game: str, protocol: str, score: float) -> list[str]:
    """A score beside each published table of its protocol that has the game; none for other protocols.

    Published human starts were never released: scores from surrogate ones stand beside no table.
    """
    lines = []
    for scores in map(table, tables()):
        if protocol == scores.protocol and game in scores.games:
            beside = ", ".join(f"{player} {row[game]:,g}" for player, row in scores.scores.items())
            share = 100 * human_normalised(scores, game, score)
            lines.append(f"{share:.1f} % of the human score in {scores.title} ({beside})")
    return lines
