"""A person at the keyboard: a window with the game, and starts of what is played in it."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from hpcrl.envs import make_games
from hpcrl.errors import ConfigError
from hpcrl.launch.evaluate import Player
from hpcrl.launch.protocols import protocol_arguments
from hpcrl.seeding import generator, seed_sequence
from hpcrl.types import GameStart

FRAMES_PER_SECOND = 60.0
SCALE = 3
"""Pixels of the window for one of the game."""
DIRECTIONS = (("UP", "DOWN"), ("RIGHT", "LEFT"))
"""In the order in which ale-py's names of actions have them; the space bar is FIRE."""
KEYS = {"Up": "UP", "Down": "DOWN", "Left": "LEFT", "Right": "RIGHT", "space": "FIRE"}
"""Names of keys, as X has them, and what they stand for."""
RELEASE_MILLISECONDS = 20
"""A key that is held down is released and pressed again by the keyboard's repetition, at once."""


class Display(Protocol):
    """Where a person sees the game, and what keys are held down."""

    pressed: Collection[str]
    """of ``KEYS``'s values"""

    def show(self, screen: np.ndarray) -> bool:
        """Show a screen, uint8 ``[H, W, 3]``; whether the person goes on."""


class Window:
    """A window of tkinter, which comes with Python; closing it, or Escape, ends the play.

    Raises
    ------
    ConfigError
        There is no display, or this Python has no tkinter.
    """

    def __init__(self, title: str):
        try:
            import tkinter

            self._root = tkinter.Tk()
        except ImportError as error:
            raise ConfigError("--keyboard needs tkinter, which this Python lacks (Debian: python3-tk)") from error
        except tkinter.TclError as error:
            raise ConfigError(f"--keyboard needs a display: {error}") from error
        self.pressed: set[str] = set()
        self._open, self._releases = True, {}
        self._root.title(f"{title}: arrow keys and space; Escape ends")
        self._picture, self._label = tkinter.PhotoImage(), tkinter.Label(self._root)
        self._label.pack()
        self._root.bind("<KeyPress>", lambda event: self._press(event.keysym))
        self._root.bind("<KeyRelease>", lambda event: self._release(event.keysym))
        self._root.bind("<Escape>", lambda event: self._close())
        self._root.protocol("WM_DELETE_WINDOW", self._close)
        self._root.focus_force()

    def show(self, screen: np.ndarray) -> bool:
        """See `Display`."""
        large = screen.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
        head = f"P6 {large.shape[1]} {large.shape[0]} 255 ".encode()
        self._picture.configure(data=head + large.tobytes(), format="ppm")
        self._label.configure(image=self._picture)
        self._root.update()
        return self._open

    def close(self) -> None:
        """Take the window away."""
        self._root.destroy()

    def _press(self, key: str) -> None:
        if key in KEYS:
            if key in self._releases:
                self._root.after_cancel(self._releases.pop(key))
            self.pressed.add(KEYS[key])

    def _release(self, key: str) -> None:
        if key in KEYS:
            self._releases[key] = self._root.after(RELEASE_MILLISECONDS, self._let_go, key)

    def _let_go(self, key: str) -> None:
        self._releases.pop(key, None)
        self.pressed.discard(KEYS[key])

    def _close(self) -> None:
        self._open = False


def chosen_action(names: Sequence[str], pressed: Collection[str]) -> int:
    """Which of a game's actions, by ale-py's names (``"UPRIGHTFIRE"``), keys stand for.

    Where the game lacks the combination: without FIRE, with one direction alone, FIRE alone, or none. In a game of left
    and right alone, up and down stand for right and left.
    """
    ways = [next((name for name in pair if name in pressed), "") for pair in DIRECTIONS]
    if not any(name.startswith("UP") for name in names):
        ways = ["", ways[1] or {"UP": "RIGHT", "DOWN": "LEFT", "": ""}[ways[0]]]
    fire = "FIRE" if "FIRE" in pressed else ""
    both, up, right = "".join(ways), *ways
    for name in (both + fire, both, up + fire, right + fire, up, right, fire):
        if name in names:
            return names.index(name)
    return names.index("NOOP")


def play(
    player: Player,
    display: Display,
    *,
    count: int,
    seed: int,
    wait: Callable[[float], None] = time.sleep,
) -> list[GameStart]:
    """Starts out of the games that a person plays by the no-op protocol until the window is closed.

    Parameters
    ----------
    player
        Whose environment is played; its policy is not asked.
    display
    count
        How many; fewer where fewer frames were played. Each frame has the same probability.
    seed
        Of the games and of the choice.
    wait
        Passes time, in seconds, up to the next frame.
    """
    arguments = protocol_arguments(player.config, "noop") | {"frame_skip": 1}
    rng, starts, seen = generator(seed, "starts choice", 0), [], 0
    env = make_games(1, seed_sequence(seed, "starts env", 0), **arguments)
    try:
        env.reset()
        names, due = env.action_names(), time.monotonic()
        while display.show(env.render(0)):
            seen += 1
            place = len(starts) if len(starts) < count else int(rng.integers(seen))
            if place < count:
                starts[place : place + 1] = [env.game_start(0)]
            env.step(np.array([chosen_action(names, display.pressed)]))
            due = max(due + 1 / FRAMES_PER_SECOND, time.monotonic() - 1 / FRAMES_PER_SECOND)
            wait(max(due - time.monotonic(), 0.0))
    finally:
        env.close()
    return starts
