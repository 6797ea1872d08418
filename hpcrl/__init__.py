"""hpcrl: deep reinforcement learning across the ranks of one MPI job."""
