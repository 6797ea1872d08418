#!/usr/bin/env bash
# Gorila DQN on Pong on this machine, from nothing: sets up its own environment, then trains.
#
#   bash jobs/workstation.sh [CONFIG.toml] [trainer arguments]
#
#   bash jobs/workstation.sh                                        Pong for five minutes, into runs/pong_gorila
#   bash jobs/workstation.sh --set run.time_limit_seconds=0         the whole run, 10 million frames
#   RANKS=5 bash jobs/workstation.sh --run-dir runs/wide            1 server and 4 bundles
#   bash jobs/workstation.sh configs/catch_serial.toml              another configuration, with the time limit it names
#
# CTRL-C stops cleanly, and the same command goes on from the last checkpoint. `hpcrl train --help` lists the
# trainer's arguments, `hpcrl plan --keys` what --set can change (both in .venv/bin).
#
# RANKS        ranks of the MPI job (default 3: one parameter server and two bundles)
# HPCRL_VENV   where the environment is made (default: .venv in the repository)
set -euo pipefail
# shellcheck source=jobs/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

set_up_environment "$VENV" mpich

if [[ ${1:--} == -* ]]; then
    set -- "$ROOT/configs/pong_gorila.toml" --set run.time_limit_seconds=300 "$@"
fi

# CTRL-C reaches mpiexec, which passes it on; this script only stays to see how the trainer ends.
trap : INT
status=0
"$VENV/bin/mpiexec" -n "${RANKS:-3}" "$VENV/bin/hpcrl" train "$@" || status=$?

# 85 is the trainer's "stopped cleanly before the end, to be resumed": how a time limit or CTRL-C ends it.
(( status == 85 )) && status=0
exit "$status"
