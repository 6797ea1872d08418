#!/usr/bin/env bash
# Ape-X on one node with a GPU, which learns, and many nodes without, which act: a heterogeneous job of two groups, whose
# tasks are one MPI world. The job is queued again until the run is at its end.
#
#   cd hpcrl && sbatch jobs/slurm_apex_het.sh [CONFIG.toml] [trainer arguments]
#
#   sbatch jobs/slurm_apex_het.sh                                      Pong, by a GPU and 59 actors on 4 nodes
#   RUN_DIR=$SCRATCH/pong sbatch jobs/slurm_apex_het.sh                another run directory
#   sbatch OPTIONS : OPTIONS jobs/slurm_apex_het.sh                    other sizes: those of each group, with a colon
#
# hpcrl puts the learners on the nodes that have GPUs, and all others elsewhere. See on the login node who would do what:
#
#   hpcrl plan configs/apex.toml --set topology.actors=0 --ranks-per-node 1,16,16,16,16 --gpus-per-node 1,0,0,0,0
#
# Arrays of heterogeneous jobs do not exist, and not every site allows such jobs: jobs/slurm_apex.sh does without.
#
# The first group: the learner, its cores, and its GPU. Options of the whole job are those of this group.
#SBATCH --job-name=hpcrl-apex
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=04:00:00
# Warn this script (B:) five minutes before the end, in case that the run does not know when that is:
#SBATCH --signal=B:USR1@300
# Queue the job again when a node fails or another job takes its place, and go on in the same output file:
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
#SBATCH hetjob
# The second group: servers, monitor and actors, a core each. Add --partition here and above where they differ.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=16
#SBATCH --cpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --requeue
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
