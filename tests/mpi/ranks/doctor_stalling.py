"""``doctor_stalling.py RANK SECONDS [fail]``: hpcrl doctor, in which a rank hangs, or fails, in the self-test."""

import sys
import time

import hpcrl.launch.mpi

RANK, SECONDS, FAILS = int(sys.argv[1]), sys.argv[2], "fail" in sys.argv

hpcrl.launch.mpi.start()

from mpi4py import MPI  # noqa: E402

import hpcrl.launch.selftest  # noqa: E402
from hpcrl.cli import main  # noqa: E402

measure = hpcrl.launch.selftest.measure


def hanging(*arguments):
    if MPI.COMM_WORLD.rank == RANK:
        if FAILS:
            raise MPI.Exception(MPI.ERR_WIN)
        time.sleep(1000)
    return measure(*arguments)


hpcrl.launch.selftest.measure = hanging
sys.argv = ["hpcrl", "doctor", "--step-seconds", SECONDS]
main()
