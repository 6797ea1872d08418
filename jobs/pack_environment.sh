#!/usr/bin/env bash
# Pack the environment that hpcrl is installed in, and hpcrl, into one file, for jobs on many nodes:
#
#   bash jobs/pack_environment.sh [FILE]                         (default: environment.tar)
#   HPCRL_PACKED=environment.tar sbatch jobs/slurm_gorila.sh     unpacks it on each node, and starts hpcrl from there
#
# To be packed anew after each change of hpcrl or of the environment. FILE's ending decides how it is compressed (.tar: it
# is not; .tar.gz, .tar.zst). The Python that the environment was made from (its `home`) must be on every node.
#
# HPCRL_VENV   the environment (default: .venv in the repository)
set -euo pipefail
# shellcheck source=jobs/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

file=${1:-environment.tar}
has_python "$VENV/bin/python" || give_up "$VENV holds no environment: set HPCRL_VENV to the one that hpcrl is installed in"
packages=$("$VENV/bin/python" -c 'import sys, sysconfig; print(sysconfig.get_path("purelib")[len(sys.prefix) + 1:])')

# hpcrl may be installed in place: the copy beside the other packages comes first, and needs no shared file system.
partial=$(dirname "$file")/partial-$(basename "$file")
tar --create --auto-compress --file "$partial" --transform "s,^hpcrl\(/\|$\),$packages/hpcrl\1," \
    -C "$VENV" . -C "$ROOT" hpcrl
mv "$partial" "$file"
echo "packed $VENV ($(du -h "$file" | cut -f 1)) into $file"
