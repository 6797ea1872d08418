"""MPICH's ranks of a node meet in a file named after the job: it must not outlive a job that is killed."""

import os
from pathlib import Path

from hpcrl.launch.mpi import forget_meeting_file


def test_the_file_in_which_ranks_met_loses_its_name_and_no_other_file_does(tmp_path):
    mine, others = (Path(f"/dev/shm/mpich_shm_{os.getpid():x}{n}_0") for n in (1, 2))
    window = mine.with_name(mine.name.replace("mpich_shm", "mpich_shar"))
    try:
        for path in (mine, others, window):
            path.touch()
        inodes = {path: path.stat().st_ino for path in (mine, others, window)}
        inodes[others] += 1  # another job has made a file of the same name since
        maps = tmp_path / "maps"
        row = "7f00-7f01 rw-s 00000000 00:1a {}                       {}\n"
        maps.write_text("".join(row.format(inode, path) for path, inode in inodes.items()))
        forget_meeting_file(maps)
        assert [path.exists() for path in (mine, others, window)] == [False, True, True]
        forget_meeting_file(maps)
        forget_meeting_file(tmp_path / "none")
    finally:
        for path in (mine, others, window):
            path.unlink(missing_ok=True)
