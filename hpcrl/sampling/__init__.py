"""Sampling: simulators stepped in large batches, and the rollouts that they fill."""
