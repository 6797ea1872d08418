"""A person's play becomes starts: by keys without a display, and in a window where there is one to be had."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrl.errors import ConfigError
from hpcrl.launch import evaluate as evaluation
from hpcrl.launch.keyboard import Window, chosen_action, play
from hpcrl.storage.starts import read_starts

ROOT = Path(__file__).parents[3]
PONG = ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]
FREEWAY = ["NOOP", "UP", "DOWN"]
ALL = [
    *("NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT", "UPFIRE"),
    *("RIGHTFIRE", "LEFTFIRE", "DOWNFIRE", "UPRIGHTFIRE", "UPLEFTFIRE", "DOWNRIGHTFIRE", "DOWNLEFTFIRE"),
]


@pytest.mark.parametrize(
    ("names", "pressed", "action"),
    [
        (ALL, set(), "NOOP"),
        (ALL, {"UP", "LEFT", "FIRE"}, "UPLEFTFIRE"),
        (ALL, {"DOWN", "RIGHT"}, "DOWNRIGHT"),
        (PONG, {"UP"}, "RIGHT"),
        (PONG, {"DOWN", "FIRE"}, "LEFTFIRE"),
        (PONG, {"LEFT"}, "LEFT"),
        (FREEWAY, {"UP", "LEFT"}, "UP"),
        (FREEWAY, {"UP", "FIRE"}, "UP"),
        (FREEWAY, {"LEFT"}, "NOOP"),
        (FREEWAY, {"FIRE"}, "NOOP"),
    ],
)
def test_keys_become_the_nearest_action_that_the_game_has(names, pressed, action):
    assert names[chosen_action(names, pressed)] == action


class Script:
    """Somebody who holds the same keys for so many frames."""

    def __init__(self, frames, pressed):
        self.frames, self.pressed, self.screens = frames, pressed, []

    def show(self, screen):
        self.screens.append(screen)
        return len(self.screens) <= self.frames


def starts_of(script, count):
    return play(evaluation.random_player("ALE/Freeway-v5"), script, count=count, seed=1, wait=lambda seconds: None)


def test_starts_are_frames_of_the_play_each_with_the_same_probability():
    script = Script(300, {"UP"})
    starts = starts_of(script, 20)
    assert len(script.screens) == 301
    assert script.screens[0].shape == (210, 160, 3)
    frames = [start.frames for start in starts]
    assert len(set(frames)) == 20
    assert max(frames) > 200 > 100 > min(frames)
    assert [start.frames for start in starts_of(Script(300, {"UP"}), 20)] == frames


def test_the_keys_move_what_is_seen():
    seen = [Script(200, pressed) for pressed in (set(), {"UP"})]
    for script in seen:
        starts_of(script, 1)
    assert np.array_equal(seen[0].screens[0], seen[1].screens[0])
    assert not np.array_equal(seen[0].screens[-1], seen[1].screens[-1])


def test_a_short_play_gives_fewer_starts_and_none_at_all_is_an_error(monkeypatch, tmp_path):
    assert len(starts_of(Script(5, set()), 20)) == 5
    from hpcrl.launch import starts

    monkeypatch.setattr(starts, "Window", lambda title: Script(0, set()))
    monkeypatch.setattr(Script, "close", lambda self: None, raising=False)
    with pytest.raises(ConfigError, match="the window was closed at once"):
        starts.main(
            evaluation.random_player("ALE/Freeway-v5"), tmp_path / "a.h5", count=1, epsilon=None, seed=1, keyboard=True
        )
    assert not (tmp_path / "a.h5").exists()


def test_without_a_display_it_says_so(monkeypatch):
    pytest.importorskip("tkinter", reason="this Python has no tkinter")
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(ConfigError, match="--keyboard needs a display"):
        Window("Pong")


def test_a_person_plays_in_a_window(tmp_path):
    """Under a display of its own: keys are sent to the window, Escape ends it, and the file is of a person."""
    pytest.importorskip("tkinter", reason="this Python has no tkinter")
    if not (server := shutil.which("Xvfb")):
        pytest.skip("Xvfb is not installed")
    read, write = os.pipe()
    display = subprocess.Popen(
        [server, "-displayfd", str(write), "-screen", "0", "800x800x24"], pass_fds=[write], stderr=subprocess.DEVNULL
    )
    try:
        number = os.read(read, 20).decode().strip()
        code = """
import sys
from hpcrl.launch import keyboard
held, shown = [], keyboard.Window.show
def show(self, screen):
    held.append(set(self.pressed))
    event = {40: "<KeyPress-Up>", 80: "<KeyRelease-Up>", 140: "<Escape>"}.get(len(held))
    if event:
        self._root.event_generate(event)
    return shown(self, screen)
keyboard.Window.show = show
from hpcrl.cli import main
sys.argv = ["hpcrl", "starts", "record", "ALE/Freeway-v5", "--keyboard", "--count", "9", "--output", sys.argv[1]]
try:
    main()
finally:
    print("HELD", held[10], held[60], held[130], len(held))
"""
        environment = {**os.environ, "DISPLAY": f":{number}"}
        command = [sys.executable, "-c", code, tmp_path / "starts.h5"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert "HELD set() {'UP'} set() 140" in done.stdout
        starts = read_starts(tmp_path / "starts.h5")
        assert (starts.origin, starts.surrogate, len(starts.starts)) == ("a person at the keyboard", True, 9)
    finally:
        display.kill()
        display.wait()
        os.close(read)
        os.close(write)
