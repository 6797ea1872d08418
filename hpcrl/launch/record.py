"""``hpcrl record``: a film of one episode, with the action values or the policy beside each frame."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from hpcrl.envs import VectorEnv, env_spec, make_games
from hpcrl.errors import ConfigError
from hpcrl.launch.agents import Agent, make_policy
from hpcrl.launch.protocols import protocol_arguments
from hpcrl.seeding import generator, seed_sequence

HEIGHT = 420
"""Pixels of a frame of the film; smaller screens are enlarged by whole numbers."""
PANEL = 300
BACK, TEXT, BAR, CHOSEN = (18, 22, 29), (230, 234, 241), (74, 110, 160), (255, 138, 92)
SUFFIXES = (".mp4", ".gif")


def record(
    agent: Agent, output: Path, *, protocol: str, epsilon: float, seed: int, max_steps: int, frames_per_second: float
) -> tuple[int, float]:
    """Film one episode, or its first ``max_steps`` steps.

    Returns
    -------
    steps, episode_return
        Steps filmed, and points gained in them.

    Raises
    ------
    ConfigError
        imageio is not installed, or the name of the file is not that of a film.
    """
    if output.suffix not in SUFFIXES:
        raise ConfigError(f"expected --output FILE{' or FILE'.join(SUFFIXES)}, got {output}")
    try:
        import imageio.v2 as imageio
    except ImportError as error:
        raise ConfigError("hpcrl record needs imageio: pip install imageio imageio-ffmpeg pillow") from error
    options = {"macro_block_size": 2} if output.suffix == ".mp4" else {"loop": 0}
    timing = {"fps": frames_per_second} if output.suffix == ".mp4" else {"duration": 1000 / frames_per_second}
    steps, points = 0, 0.0
    with imageio.get_writer(output, **options, **timing) as film:
        for picture, reached in pictures(agent, protocol=protocol, epsilon=epsilon, seed=seed):
            film.append_data(picture)
            steps, points = steps + 1, reached
            if steps == max_steps:
                break
    return steps, points


def pictures(agent: Agent, *, protocol: str, epsilon: float, seed: int) -> Iterator[tuple[np.ndarray, float]]:
    """Each step of one episode: the picture acted upon, uint8 ``[HEIGHT, width, 3]``, and the points after it."""
    config = agent.config
    policy = make_policy(agent, generator(seed, "record", 0))
    env = make_games(1, seed_sequence(seed, "record env", 0), **protocol_arguments(config, protocol))
    try:
        env.reset()
        points, over = 0.0, False
        while not over:
            action = policy.act(env.observation, epsilon)
            screen, values = _screen(env), action_values(agent, policy.replica.network, env.observation)
            picture = _beside(screen, _panel(values, int(action[0]), points))
            step = env.step(action)
            points, over = points + float(step.reward[0]), bool(step.episode_over[0])
            yield picture, points
    finally:
        env.close()


def action_values(agent: Agent, network: torch.nn.Module, observation: np.ndarray) -> np.ndarray:
    """float32 ``[A]``: the value of each action or, of a policy, its probability.

    Raises
    ------
    ConfigError
        The actions are vectors.
    """
    config = agent.config
    if env_spec(**config.env.arguments()).continuous:
        raise ConfigError(f"expected an agent of discrete actions, got one of {config.env.id}")
    with torch.inference_mode():
        outputs = network(torch.from_numpy(observation))
        if config.learning.has_action_values:
            from hpcrl.launch.sizes import learning_rule

            return learning_rule(config).q(outputs.float())[0].numpy()
        return torch.softmax(outputs[0].float(), dim=-1)[0].numpy()


def _screen(env: VectorEnv) -> np.ndarray:
    """What a person would see, uint8 ``[H, W, 3]``: the game's own screen, or the newest frame in grey."""
    if hasattr(env, "render"):
        return env.render(0)
    frame = np.asarray(env.observation[0, -1])
    if frame.ndim != 2:  # numbers rather than a picture: one stripe for each, from black to white
        frame = np.atleast_2d(frame.reshape(1, -1))
    low, high = float(frame.min()), float(frame.max())
    grey = frame if frame.dtype == np.uint8 else (255 * (frame - low) / max(high - low, 1e-9)).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _beside(screen: np.ndarray, panel: np.ndarray) -> np.ndarray:
    scale = max(HEIGHT // screen.shape[0], 1)
    large = screen.repeat(scale, axis=0).repeat(scale, axis=1)[:HEIGHT]
    width = large.shape[1] + large.shape[1] % 2
    picture = np.full((HEIGHT, width + PANEL, 3), BACK, np.uint8)
    top = (HEIGHT - large.shape[0]) // 2
    picture[top : top + large.shape[0], : large.shape[1]] = large
    picture[:, width:] = panel
    return picture


def _panel(values: np.ndarray, chosen: int, points: float) -> np.ndarray:
    """Bars of the action values, from the lowest to the highest, the chosen action in its own colour."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (PANEL, HEIGHT), BACK)
    draw = ImageDraw.Draw(image)
    draw.text((12, 8), f"points {points:g}", fill=TEXT)
    low, high = float(values.min()), float(values.max())
    row = min((HEIGHT - 40) // len(values), 24)
    for action, value in enumerate(values):
        top = 34 + action * row
        length = 4 + 150 * (float(value) - low) / max(high - low, 1e-9)
        draw.rectangle((34, top, 34 + length, top + row - 4), fill=CHOSEN if action == chosen else BAR)
        draw.text((12, top), f"{action}", fill=TEXT)
        draw.text((38 + length, top), f"{value:.3f}", fill=TEXT)
    return np.asarray(image)
