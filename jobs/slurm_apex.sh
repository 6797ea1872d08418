#!/usr/bin/env bash
# Ape-X on nodes that are all alike: actors on every core, one learner, one prioritised memory spread over the servers.
# The job is queued again until the run is at its end.
#
#   cd hpcrl && sbatch jobs/slurm_apex.sh [CONFIG.toml] [trainer arguments]
#
#   sbatch jobs/slurm_apex.sh                                          Pong, by 58 actors on 4 nodes
#   sbatch --nodes=23 jobs/slurm_apex.sh                               362 actors, the published scale
#   sbatch --gpus-per-node=1 jobs/slurm_apex.sh                        on nodes with GPUs, of which the learner uses one
#   RUN_DIR=$SCRATCH/pong sbatch jobs/slurm_apex.sh                    another run directory
#
# Where one node with a GPU and many without should work together, jobs/slurm_apex_het.sh asks for both. Before a long
# queue, see on the login node who would do what, and what it takes:
#
#   hpcrl plan configs/apex.toml --set topology.actors=0 --ranks 64 --nodes 4
#
# What follows `#SBATCH` are options of sbatch; those given on its command line count more.
#
#SBATCH --job-name=hpcrl-apex
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

# All ranks that are left act.
if [[ ${1:--} == -* ]]; then
    set -- configs/apex.toml --set topology.actors=0 "$@"
fi
train_and_requeue "${RUN_DIR:-runs/$(basename "$1" .toml)}" "$@"
