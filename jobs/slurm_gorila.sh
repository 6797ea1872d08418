#!/usr/bin/env bash
# Gorila over several nodes, for as long as it takes: the job is queued again until the run is at its end.
#
#   cd hpcrl && sbatch jobs/slurm_gorila.sh [CONFIG.toml] [trainer arguments]
#
#   sbatch jobs/slurm_gorila.sh                                    Pong, by 4 servers and 60 bundles on 4 nodes
#   sbatch --nodes=8 jobs/slurm_gorila.sh --set env.id=ALE/Qbert-v5  another game, by 8 servers and 120 bundles
#   sbatch --nodes=8 jobs/slurm_gorila.sh configs/breakout_gorila.toml --set topology.servers=31
#   RUN_DIR=$SCRATCH/pong sbatch jobs/slurm_gorila.sh              another run directory
#
# Before a long queue, see on the login node who would do what, and what it takes:
#
#   hpcrl plan configs/pong_gorila.toml --set topology.servers=4 --ranks 64 --nodes 4
#
# What follows `#SBATCH` are options of sbatch; those given on its command line count more.
#
#SBATCH --job-name=hpcrl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=16
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
    set -- configs/pong_gorila.toml --set topology.servers="$SLURM_JOB_NUM_NODES" "$@"
fi
train_and_requeue "${RUN_DIR:-runs/$(basename "$1" .toml)}" "$@"
