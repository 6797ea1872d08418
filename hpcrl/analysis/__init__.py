"""Offline analysis: what can be read off the files of runs. Never imports MPI or torch."""
