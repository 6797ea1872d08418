"""``apart.py ...``: hpcrl train with these arguments, where no rank shares what others of its node pull too."""

import sys

import hpcrl.launch.job
from hpcrl.cli import main

hpcrl.launch.job.shared_on_node = lambda job, vector, readers: vector
sys.argv[:1] = ["hpcrl", "train"]
main()
