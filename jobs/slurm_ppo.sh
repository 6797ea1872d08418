#!/usr/bin/env bash
# Synchronous PPO on the GPUs of several nodes: a learner for each GPU, whose gradients are averaged by NCCL inside a
# node and by MPI between nodes. The job is queued again until the run is at its end.
#
#   cd hpcrl && sbatch jobs/slurm_ppo.sh [CONFIG.toml] [trainer arguments]
#
#   sbatch jobs/slurm_ppo.sh                                           Breakout, by 8 learners on 2 nodes of 4 GPUs
#   sbatch --nodes=1 jobs/slurm_ppo.sh --set env.id=ALE/Pong-v5        another game, by 4 learners
#   sbatch --gpus-per-node=8 --ntasks-per-node=8 jobs/slurm_ppo.sh     nodes of 8 GPUs
#   RUN_DIR=$SCRATCH/breakout sbatch jobs/slurm_ppo.sh                 another run directory
#
# What follows `#SBATCH` are options of sbatch; those given on its command line count more. Your site may also want
# --partition, --account, or the kind of GPU (--gpus-per-node=a100:4).
#
#SBATCH --job-name=hpcrl-ppo
#SBATCH --nodes=2
# As many tasks as GPUs on each node. Each task sees all of them, and takes the one of its number:
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-node=4
# Simulators run on the cores of their learner:
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
# Warn this script (B:) five minutes before the end, in case that the run does not know when that is:
#SBATCH --signal=B:USR1@300
# Queue the job again when a node fails or another job takes its place, and go on in the same output file:
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
# shellcheck source=jobs/slurm.sh
source jobs/slurm.sh
enter_environment # what your site needs belongs into jobs/site.sh: see jobs/slurm.sh

if [[ ${1:--} == -* ]]; then
    set -- configs/am_ppo.toml "$@"
fi
train_and_requeue "${RUN_DIR:-runs/$(basename "$1" .toml)}" "$@"
