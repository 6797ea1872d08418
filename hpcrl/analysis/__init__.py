"""Offline analysis: what can be read off the files of runs. Never imports MPI or torch."""

from hpcrl.analysis.runs import Run, load

__all__ = ["Run", "load"]
