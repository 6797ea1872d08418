#!/usr/bin/env bash
# PPO on Pong by Stable-Baselines3 and by CleanRL over EnvPool, beside `hpcrl bench ppo`: the same work on the same cores.
#
#   bash jobs/bench_peers.sh
#
# 8 simulators, rollouts of 128 steps, 4 epochs of 4 minibatches, Nature's network, float32; CleanRL's also in bfloat16.
# Prints steps per second (agent steps; a step is 4 frames) and needs about 10 minutes beside the installation.
#
# STEPS        steps of each run (default: 20480)
# HPCRL_VENV   hpcrl's environment (default: .venv in the repository); the peers have one of their own beside it
set -euo pipefail
# shellcheck source=jobs/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

PEERS=${VENV}-peers
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

echo "stable-baselines3, float32:"
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

for precision in float32 bfloat16; do
    echo "CleanRL over EnvPool, $precision:"
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

echo "hpcrl:"
"$VENV/bin/hpcrl" bench ppo
