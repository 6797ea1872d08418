"""``contexts.py CONFIG ...``: ``hpcrl train``, after which each rank says whether it has used a GPU."""

import sys

from hpcrl.cli import main

sys.argv = ["hpcrl", "train", *sys.argv[1:]]
try:
    main()
finally:
    import torch
    from mpi4py import MPI

    print(f"context of rank {MPI.COMM_WORLD.rank}: {torch.cuda.is_initialized()}", flush=True)
