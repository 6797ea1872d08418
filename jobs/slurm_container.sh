#!/usr/bin/env bash
# A run on several nodes from an Apptainer image, which holds Python, hpcrl and an MPI: nothing to install on the cluster,
# and one file to read at the start. The job is queued again until the run is at its end.
#
#   apptainer build hpcrl.sif jobs/container.def                       once, where Apptainer may build (--fakeroot)
#   cd hpcrl && sbatch jobs/slurm_container.sh [CONFIG.toml] [trainer arguments]
#
# HPCRL_IMAGE  the image (default: hpcrl.sif). Any other batch script of this folder uses it too, if it is set.
#
# srun starts one container for each rank (the "hybrid" model): the MPI inside talks to srun by PMI, so only the kind of
# it has to match: HPCRL_SRUN_MPI=pmi2 for MPICH, which container.def installs, pmix for Open MPI. For the site's own
# fast network, bind its MPI into the container: docs/slurm.md says how.
#
# What follows `#SBATCH` are options of sbatch; those given on its command line count more.
#
#SBATCH --job-name=hpcrl
#SBATCH --nodes=2
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
HPCRL_IMAGE=${HPCRL_IMAGE:-hpcrl.sif}
enter_environment # what your site needs belongs into jobs/site.sh: see jobs/slurm.sh

if [[ ${1:--} == -* ]]; then
    set -- configs/pong_gorila.toml --set topology.servers="$SLURM_JOB_NUM_NODES" "$@"
fi
train_and_requeue "${RUN_DIR:-runs/$(basename "$1" .toml)}" "$@"
