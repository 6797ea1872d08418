# shellcheck shell=bash
# What the batch scripts of this folder share. It is sourced, not run, and defines:
#
#   train_and_requeue RUN_DIR CONFIG [trainer arguments]
#
# trains in RUN_DIR on all tasks of the job, and queues the job again when it stopped before the end of the run: because
# its time was up, because Slurm warned it (USR1), or by a fault, say of a node, if it had written a checkpoint since it
# started. The same script then goes on where it stopped. A run that ended, that somebody stopped (hpcrl stop RUN_DIR),
# that was cancelled, or that has a mistake in its configuration, is not queued again.
#
# HPCRL_SRUN_MPI   how srun starts an MPI program: pmi2 for MPICH (the default), pmix for Open MPI; `srun --mpi=list`

# Exit codes of the trainer: stopped cleanly, the same command goes on; a mistake in the configuration or the set-up.
STOPPED=85 MISTAKE=2

train_and_requeue() {
    local run_dir=$1 warned=0 before step status
    shift
    before=$(newest_checkpoint "$run_dir")
    export_end_time
    echo "$(date -Is) start ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, in $run_dir"

    # Signals reach this shell, which asks the run to stop, and waits. Slurm sends TERM to the tasks by itself.
    trap 'warned=1; hpcrl stop "$run_dir"' USR1
    trap : TERM
    srun --mpi="${HPCRL_SRUN_MPI:-pmi2}" --kill-on-bad-exit=1 hpcrl train "$@" --run-dir "$run_dir" &
    step=$!
    while status=0; wait "$step" || status=$?; kill -0 "$step" 2>/dev/null; do
        : # `wait` was ended by a signal
    done

    if (( status == STOPPED )); then
        if (( warned )) || [[ ! -e $run_dir/stop ]]; then requeue; fi
    elif (( status != 0 && status != MISTAKE )); then
        if [[ $(newest_checkpoint "$run_dir") != "$before" ]]; then requeue; fi
    fi
    return "$status"
}

newest_checkpoint() {
    find "$1/checkpoints" -maxdepth 1 -name 'step-*[0-9]' 2>/dev/null | sort | tail -n 1 || true
}

# Tell the run when Slurm will end this job. It stops by itself as much earlier as its last checkpoint takes.
export_end_time() {
    local end
    unset HPCRL_END_TIME # that of an earlier start, or of the job that this one was submitted from
    end=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %e 2>/dev/null | head -n 1) || return 0
    end=$(date --date "$end" +%s 2>/dev/null) || return 0 # no limit
    export HPCRL_END_TIME=$end
}

# Queue this job again, unless it is being cancelled, or Slurm does it anyway.
requeue() {
    local id=$SLURM_JOB_ID
    [[ $(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T) == RUNNING ]] || return 0
    if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
        id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    fi
    if scontrol requeue "$id"; then
        echo "$(date -Is) before its end: queued again"
        exit 0
    fi
    echo "$(date -Is) before its end, but could not be queued again: submit this script once more" >&2
}
