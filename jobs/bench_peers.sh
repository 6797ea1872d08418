#!/usr/bin/env bash
# PPO and DQN on Pong by Stable-Baselines3 and by CleanRL, beside `hpcrl bench`: the same work on the same cores.
#
#   bash jobs/bench_peers.sh            # both
#   bash jobs/bench_peers.sh dqn        # one of them
#
# PPO: 8 simulators, rollouts of 128 steps, 4 epochs of 4 minibatches, Nature's network, float32; CleanRL's, over EnvPool,
# also in bfloat16, where the processor multiplies that. DQN: minibatches of 32, one for every 4 steps, Nature's network,
# float32, a random action in 10.
# Prints steps per second (agent steps; a step is 4 frames) and needs about 20 minutes beside the installation.
#
# STEPS        steps of each run of PPO (default: 20480); of DQN a quarter
# HPCRL_VENV   hpcrl's environment (default: .venv in the repository); the peers have one of their own beside it
set -euo pipefail
# shellcheck source=jobs/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

PEERS=${VENV}-peers
ALGORITHMS=${1:-ppo dqn}
STEPS=${STEPS:-20480}
TORCH=$(grep -o '^torch==[^ ;]*' "$ROOT/constraints.txt")

set_up_environment "$VENV" mpich
if [[ ! -f $PEERS/hpcrl-peers ]]; then
    python3 -m venv "$PEERS"
    # Of these versions EnvPool answers in the interface that this CleanRL knows. They want NumPy 1.
    "$PEERS/bin/python" -m pip install "$TORCH" "numpy<2" "stable-baselines3>=2.3" "ale-py>=0.11" opencv-python-headless \
        envpool==0.8.4 gym==0.25.2 tensorboard "setuptools<81"
    # CleanRL is scripts: its package is only unpacked.
    "$PEERS/bin/python" -m pip download --no-deps --ignore-requires-python --dest "$PEERS/cleanrl" cleanrl==1.2.0
    (cd "$PEERS/cleanrl" && "$PEERS/bin/python" -m zipfile -e cleanrl-1.2.0-*.whl .)
    touch "$PEERS/hpcrl-peers"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

compare_ppo() {
echo "PPO, stable-baselines3, float32:"
"$PEERS/bin/python" - "$STEPS" <<'PYTHON'
import sys
import time

import ale_py
import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

if __name__ == "__main__":
    gymnasium.register_envs(ale_py)
    steps = int(sys.argv[1])
    for name, vectorized in (("in one process", None), ("in processes", SubprocVecEnv)):
        options = {"vec_env_cls": vectorized, "vec_env_kwargs": {"start_method": "fork"}} if vectorized else {}
        env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=8, seed=1, **options), n_stack=4)
        agent = PPO("CnnPolicy", env, n_steps=128, n_epochs=4, batch_size=256, clip_range=0.1, device="cpu")
        agent.learn(1024)
        begin = time.perf_counter()
        agent.learn(steps)
        print(f"  simulators {name}: {steps / (time.perf_counter() - begin):.0f} steps/s", flush=True)
        env.close()
PYTHON

precisions=(float32)
if "$VENV/bin/python" -c 'from hpcrl.networks import resolve_precision as of
raise SystemExit(str(of("auto", "nature", "cpu")) != "torch.bfloat16")'; then
    precisions+=(bfloat16)
else
    echo "no bfloat16: this processor does not multiply it"
fi
for precision in "${precisions[@]}"; do
    echo "PPO, CleanRL over EnvPool, $precision:"
    "$PEERS/bin/python" - "$precision" "$PEERS/cleanrl/cleanrl/ppo_atari_envpool.py" --total-timesteps "$STEPS" \
        --cuda False <<'PYTHON' | grep '^SPS' | tail -n 1
import runpy
import sys

import torch

precision, script = sys.argv[1:3]
if precision == "bfloat16":
    # Everywhere, and without its cache of converted weights, which only the end of an autocast context would empty.
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.set_autocast_cache_enabled(False)
sys.argv = [script, *sys.argv[3:]]
runpy.run_path(script, run_name="__main__")
PYTHON
done

echo "PPO, hpcrl:"
"$VENV/bin/hpcrl" bench ppo
}

compare_dqn() {
echo "DQN, stable-baselines3:"
"$PEERS/bin/python" - "$((STEPS / 4))" <<'PYTHON'
import sys
import time

import ale_py
import gymnasium
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

gymnasium.register_envs(ale_py)
steps = int(sys.argv[1])
env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=4, seed=1), n_stack=4)
work = {"learning_starts": 1000, "batch_size": 32, "train_freq": 1, "gradient_steps": 1, "target_update_interval": 10_000}
memory = {"buffer_size": 20_000, "optimize_memory_usage": True}
memory["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
exploration = {"exploration_initial_eps": 0.1, "exploration_final_eps": 0.1}
agent = DQN("CnnPolicy", env, device="cpu", **work, **memory, **exploration)
agent.learn(1400)
begin = time.perf_counter()
agent.learn(steps, reset_num_timesteps=False)
print(f"  4 simulators: {steps / (time.perf_counter() - begin):.0f} steps/s", flush=True)
PYTHON

echo "DQN, CleanRL:"
"$PEERS/bin/python" - "$PEERS/cleanrl/cleanrl/dqn_atari.py" --total-timesteps "$((STEPS / 4 + 1000))" \
    --learning-starts 1000 --buffer-size 20000 --start-e 0.1 --end-e 0.1 --env-id PongNoFrameskip-v4 --cuda False \
    <<'PYTHON'
import builtins
import runpy
import sys
import time

import ale_py
import gymnasium
from gymnasium import wrappers

gymnasium.register_envs(ale_py)
# As gymnasium called them when the script was written.
wrappers.GrayScaleObservation, wrappers.FrameStack = wrappers.GrayscaleObservation, wrappers.FrameStackObservation
reports = []  # one every 100 steps, once it learns


def print_reports(*words, **options):
    """The script's own figure counts the steps before it learns."""
    if words[0] == "SPS:":
        reports.append(time.perf_counter())


builtins.print, say = print_reports, print
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
say(f"  1 simulator: {100 * (len(reports) - 1) / (reports[-1] - reports[0]):.0f} steps/s")
PYTHON

echo "DQN, hpcrl:"
"$VENV/bin/hpcrl" bench dqn
}

for algorithm in $ALGORITHMS; do
    "compare_$algorithm"
done
