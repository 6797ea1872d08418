#!/usr/bin/env bash
# Is this machine's GPU used rightly, and how fast? Sets up its own environment, runs tests/gpu, and prints a report; in
# less than 8 minutes on a machine with one GPU and 16 cores.
#
#   bash jobs/gpu_check.sh [pytest arguments]
#
# HPCRL_VENV   where the environment is made (default: .venv in the repository); it needs a torch for CUDA
set -euo pipefail
# shellcheck source=jobs/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

set_up_environment "$VENV" mpich,dev

cd "$ROOT"
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || echo "nvidia-smi does not run here"
"$VENV/bin/python" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
status=0
timeout 420 "$VENV/bin/python" -m pytest tests/gpu -q -s --durations=0 -m "" "$@" || status=$?
echo
(( status )) && echo "GPU check: FAILED ($status)" || echo "GPU check: passed, or skipped for the reasons above"
exit "$status"
