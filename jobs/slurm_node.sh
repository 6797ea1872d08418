#!/usr/bin/env bash
# A run on one node of a cluster, of any length: the job is queued again until the run is at its end.
#
#   cd hpcrl && sbatch jobs/slurm_node.sh [CONFIG.toml] [trainer arguments]
#
#   sbatch jobs/slurm_node.sh                                          Pong, into runs/pong_gorila
#   sbatch --ntasks=33 jobs/slurm_node.sh --set env.id=ALE/Breakout-v5 another game, 1 server and 32 bundles
#   RUN_DIR=$SCRATCH/pong sbatch jobs/slurm_node.sh                    another run directory
#
# What follows `#SBATCH` are options of sbatch; those given on its command line count more.
#
#SBATCH --job-name=hpcrl
#SBATCH --nodes=1
#SBATCH --ntasks=9
#SBATCH --cpus-per-task=1
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
    set -- configs/pong_gorila.toml "$@"
fi
train_and_requeue "${RUN_DIR:-runs/$(basename "$1" .toml)}" "$@"
