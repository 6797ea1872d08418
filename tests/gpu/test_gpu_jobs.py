"""Jobs with a GPU: which ranks use it, and how synchronous learners share it."""

from pathlib import Path

from launching import ROOT, run_ranks, train

from hpcrl.storage.checkpoint import latest

CONFIG = ROOT / "tests" / "mpi" / "small.toml"
CONTEXTS = Path(__file__).with_name("contexts.py")
SYNCHRONOUS = ["topology.layout=sampler_learner", "learning.update=allreduce", "run.total_updates=60"]


def test_only_learners_make_a_context_on_a_gpu(tmp_path):
    overrides = ["--set", "topology.layout=split", "--set", "run.total_updates=40"]
    done = run_ranks(3, [CONTEXTS, CONFIG, "--run-dir", tmp_path, *overrides])
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ") for line in done.stdout.splitlines() if line.startswith("context of rank"))
    # A server, a learner and an actor.
    assert said == {"context of rank 0": "False", "context of rank 1": "True", "context of rank 2": "False"}


def test_two_learners_on_one_gpu_are_refused_by_nccl_and_served_by_mpi(tmp_path):
    seen = {"CUDA_VISIBLE_DEVICES": "0"}
    done = train(2, CONFIG, tmp_path / "nccl", *SYNCHRONOUS, "learner.reduce=nccl", **seen)
    assert done.returncode == 2, done.stderr
    assert "two learners on one" in done.stderr
    done = train(2, CONFIG, tmp_path / "mpi", *SYNCHRONOUS, "learner.reduce=mpi", **seen)
    assert done.returncode == 0, done.stderr
    assert latest(tmp_path / "mpi")[0].global_update == 60


def test_one_learner_with_nccl_and_one_with_a_store_train(tmp_path):
    done = train(1, CONFIG, tmp_path / "nccl", *SYNCHRONOUS, "learner.reduce=nccl")
    assert done.returncode == 0, done.stderr
    done = train(2, CONFIG, tmp_path / "store", "learning.update=store", "run.total_updates=60")
    assert done.returncode == 0, done.stderr
