"""One-sided communication: mpi4py and numpy, no word of reinforcement learning."""
