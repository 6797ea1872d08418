"""Checkpoints written by their owners while training goes on, in every order that may happen."""

import threading
import time

import numpy as np
import pytest
from fakes import FakeCounters

from hpcrl.replay import local_lanes
from hpcrl.roles import checkpointing
from hpcrl.roles.checkpointing import CheckpointKeeper, ReplayState, RoleState, StateWriter
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage.best import read_best
from hpcrl.storage.replay import ReplayFile
from hpcrl.storage.statefile import read_state, write_state


class Shard:
    kind = "parameter_server"

    def __init__(self, index):
        self.index, self.version = index, 0

    def state(self):
        return {"params": np.full(5, self.version, np.float32), "version": np.int64(self.version)}


class Job:
    """Two ranks with an owner of state each, and a keeper; what is submitted runs when the test says so, or at once."""

    def __init__(self, run_dir, submit=lambda task: task(), keep_last=3, wait=False):
        self.silent = set()
        self.frames = 0
        self.run_dir, self.counters, self.shards = run_dir, FakeCounters(), [Shard(0), Shard(1)]
        self.writers = [
            StateWriter(rank, [RoleState(shard)], counters=self.counters, run_dir=run_dir, wait=wait)
            for rank, shard in enumerate(self.shards)
        ]
        self.keeper = CheckpointKeeper(
            run_dir=run_dir,
            counters=self.counters,
            owners={writer.rank: [owner.name for owner in writer.owners] for writer in self.writers},
            attributes=lambda: {"total_frames": self.frames + 4 * self.shards[0].version},
            submit=submit,
            keep_last=keep_last,
            keep_every=0,
            silent=lambda: self.silent,
            period_seconds=10.0,
            wait=wait,
            expected_seconds=5.0,
        )

    def train(self, version):
        for shard in self.shards:
            shard.version = version

    def write(self, writer):
        """Let one owner see the request, write, and say so."""
        writer.step()
        if writer._thread is not None:
            writer._thread.join()
            writer.step()

    def take(self, update):
        self.keeper.begin(update)
        self.keeper.step()
        for writer in self.writers:
            self.write(writer)
        self.keeper.step()
        self.keeper.step()

    def names(self):
        return sorted(path.name for path in (self.run_dir / "checkpoints").iterdir())


@pytest.fixture(autouse=True)
def look_always(monkeypatch):
    monkeypatch.setattr(checkpointing, "LOOK_SECONDS", 0)


def test_a_checkpoint_holds_the_state_of_every_owner(tmp_path):
    job = Job(tmp_path)
    job.train(7)
    job.take(7)
    assert (job.keeper.written, job.keeper.failed, job.keeper.busy) == (1, 0, False)
    newest, skipped = checkpoints.latest(tmp_path)
    assert (newest.global_update, skipped) == (7, [])
    assert newest.attributes["total_frames"] == 28
    for index in (0, 1):
        path = checkpoints.state_path(newest.path, f"parameter_server-{index}")
        arrays, _ = read_state(path, "parameter_server")
        np.testing.assert_array_equal(arrays["params"], np.full(5, 7, np.float32))


def test_update_zero_is_a_checkpoint_too(tmp_path):
    job = Job(tmp_path)
    job.take(0)
    assert checkpoints.latest(tmp_path)[0].global_update == 0


def test_nothing_is_finished_before_the_last_owner_has_written(tmp_path):
    job = Job(tmp_path)
    job.keeper.begin(3)
    job.keeper.step()
    job.write(job.writers[0])
    for _ in range(3):
        job.keeper.step()
    assert job.keeper.busy
    assert checkpoints.latest(tmp_path) == (None, [])
    job.write(job.writers[1])
    job.keeper.step()
    assert checkpoints.latest(tmp_path)[0].global_update == 3


def test_owners_are_asked_only_once_the_directory_is_there(tmp_path):
    tasks = []
    job = Job(tmp_path, submit=tasks.append)
    job.keeper.begin(3)
    job.keeper.step()
    assert "checkpoint" not in job.counters.values
    assert not job.writers[0].step()
    tasks.pop()()
    job.keeper.step()
    assert job.counters.get("checkpoint") // checkpointing.ATTEMPTS == 3


def test_one_at_a_time_and_none_twice(tmp_path):
    tasks = []
    job = Job(tmp_path, submit=tasks.append)
    job.keeper.begin(3)
    job.keeper.begin(9)
    assert len(tasks) == 1
    job = Job(tmp_path)
    job.take(3)
    job.keeper.begin(3)
    assert not job.keeper.busy


def test_state_is_copied_when_asked_for_and_training_goes_on_meanwhile(tmp_path):
    job = Job(tmp_path)
    job.train(3)
    job.keeper.begin(3)
    job.keeper.step()
    assert job.writers[0].step()
    job.train(4)
    job.write(job.writers[0])
    job.write(job.writers[1])
    job.keeper.step()
    newest, _ = checkpoints.latest(tmp_path)
    versions = [
        int(read_state(checkpoints.state_path(newest.path, f"parameter_server-{i}"), "parameter_server")[0]["version"])
        for i in (0, 1)
    ]
    assert versions == [3, 4]  # every owner is cut at its own time


def test_an_owner_that_cannot_write_costs_this_checkpoint_and_no_more(tmp_path):
    job = Job(tmp_path)
    job.take(3)
    job.keeper.begin(5)
    job.keeper.step()
    job.write(job.writers[0])
    unfinished = checkpoints.unfinished_dir(tmp_path, 5)
    (unfinished / "parameter_server-1.h5").mkdir()  # the second owner finds its file's name taken
    job.write(job.writers[1])
    assert job.counters.get("written/1") == -job.counters.get("checkpoint")
    job.keeper.step()
    job.keeper.step()
    assert (job.keeper.written, job.keeper.failed, job.keeper.busy) == (1, 1, False)
    assert job.names() == ["step-000000000003"]
    job.take(5)  # of the same update, as at the end of a run
    assert checkpoints.latest(tmp_path)[0].global_update == 5


def test_a_directory_that_cannot_be_made_costs_this_checkpoint_and_no_more(tmp_path):
    job = Job(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    job.keeper.begin(3)
    job.keeper.step()
    assert (job.keeper.failed, job.keeper.busy) == (1, False)
    (tmp_path / "checkpoints").unlink()
    job.take(4)
    assert checkpoints.latest(tmp_path)[0].global_update == 4


def test_old_ones_are_pruned(tmp_path):
    job = Job(tmp_path, keep_last=2)
    for update in (1, 2, 3, 4):
        job.take(update)
    assert job.names() == ["step-000000000003", "step-000000000004"]


def test_owners_look_only_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "LOOK_SECONDS", 1000)
    job = Job(tmp_path)
    looks = job.counters.looks
    for _ in range(5):
        assert not job.writers[0].step()
    assert job.counters.looks == looks + 1


class Memory:
    """An owner whose bytes are written while training goes on."""

    name = "replay-0"

    def __init__(self):
        self.released = threading.Event()

    def cut(self):
        def write(path):
            assert self.released.wait(30)
            write_state(path, "replay", {"records": np.arange(3)}, {})

        return write


def test_all_owners_of_a_rank_are_cut_in_the_same_round_and_answer_together(tmp_path):
    counters, shard, memory = FakeCounters(), Shard(0), Memory()
    writer = StateWriter(7, [RoleState(shard), memory], counters=counters, run_dir=tmp_path, wait=False)
    checkpoints.begin(tmp_path, 5)
    counters.set("checkpoint", 5 * checkpointing.ATTEMPTS + 1)
    shard.version = 5
    assert writer.step()
    shard.version = 6  # training goes on
    assert not writer.step()
    assert "written/7" not in counters.values
    memory.released.set()
    writer._thread.join()
    assert writer.step()
    assert counters.get("written/7") == 5 * checkpointing.ATTEMPTS + 1
    directory = checkpoints.unfinished_dir(tmp_path, 5)
    arrays, _ = read_state(checkpoints.state_path(directory, "parameter_server-0"), "parameter_server")
    assert arrays["version"] == 5
    assert checkpoints.state_path(directory, "replay-0").exists()


@pytest.fixture
def packing(tmp_path):
    """Two ranks of a node with a scratch directory, 7, which packs, and 8, and their counters."""
    counters, scratch = FakeCounters(), tmp_path / "scratch"
    scratch.mkdir()
    owners = {7: ["parameter_server-0"], 8: ["parameter_server-1"]}
    node = checkpointing.Node(3, owners, patience_seconds=0.3)
    common = {"counters": counters, "run_dir": tmp_path, "scratch_dir": scratch, "wait": False}
    writers = [
        StateWriter(7, [RoleState(Shard(0))], **common, node=node),
        StateWriter(8, [RoleState(Shard(1))], **common),
    ]
    return counters, scratch, writers


def step_until(writer, condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        writer._next_look = 0.0
        writer.step()
        time.sleep(0.005)


def test_the_files_of_a_node_are_made_in_its_scratch_directory_and_packed_into_one(packing, tmp_path):
    counters, scratch, (packer, other) = packing
    for attempt in (1, 2):  # another checkpoint after one that was given up
        directory, request = checkpoints.begin(tmp_path, 5), 5 * checkpointing.ATTEMPTS + attempt
        counters.set("checkpoint", request)
        step_until(packer, lambda: packer._packs_until)
        assert counters.get("written/7") != request  # not before the other has written
        step_until(other, lambda request=request: counters.get("written/8") == request)
        step_until(packer, lambda request=request: counters.get("written/7") == request)
        assert [path.name for path in directory.iterdir()] == ["node-3.tar"]
        assert not list(scratch.iterdir())
    checkpoints.finish(directory, ["parameter_server-0", "parameter_server-1"], [], {})
    newest, skipped = checkpoints.latest(tmp_path)
    assert not skipped
    for owner in newest.owners:
        arrays, _ = read_state(newest.file(owner), "parameter_server")
        assert arrays["version"] == 0
        assert newest.files[owner]["pack"] == "node-3.tar"
    with open(directory.with_suffix("") / "node-3.tar", "r+b") as file:
        file.seek(newest.files["parameter_server-1"]["offset"] + 100)
        file.write(b"x")
    assert "parameter_server-1.h5: expected sha256" in checkpoints.find_fault(newest)


def test_a_rank_that_does_not_write_is_left_out_of_the_pack(packing, tmp_path):
    counters, _, (packer, _) = packing
    directory, request = checkpoints.begin(tmp_path, 5), 5 * checkpointing.ATTEMPTS + 1
    counters.set("checkpoint", request)
    step_until(packer, lambda: counters.get("written/7") == request)
    checkpoints.finish(directory, ["parameter_server-0"], ["parameter_server-1"], {})
    newest, skipped = checkpoints.latest(tmp_path)
    assert (newest.owners, newest.absent, skipped) == (("parameter_server-0",), ("parameter_server-1",), [])


def test_a_pack_that_cannot_be_written_fails_the_checkpoint(packing, tmp_path):
    counters, _, (packer, other) = packing
    directory, request = checkpoints.begin(tmp_path, 5), 5 * checkpointing.ATTEMPTS + 1
    (directory / "node-3.tar").touch()
    counters.set("checkpoint", request)
    step_until(other, lambda: counters.get("written/8") == request)
    step_until(packer, lambda: counters.get("written/7") == -request)
    assert (directory / "node-3.tar").read_bytes() == b""


def test_a_checkpoint_without_replay(tmp_path):
    job, memory = Job(tmp_path), Memory()
    memory.released.set()
    job.writers[1].owners.append(memory)
    job.keeper.owners[1].append(memory.name)
    for update, without in ((3, False), (4, True), (5, False)):
        seconds = job.keeper.seconds
        job.keeper.begin(update, without_replay=without)
        job.keeper.step()
        for writer in job.writers:
            job.write(writer)
        job.keeper.step()
        newest, skipped = checkpoints.latest(tmp_path)
        assert (newest.global_update, skipped) == (update, [])
        assert ("replay-0" in newest.owners) != without
        assert "parameter_server-1" in newest.owners
        assert (job.keeper.seconds == seconds) == without  # what a whole one takes
        job.keeper.step()


def test_where_the_loop_waits_all_is_written_and_answered_in_the_round_of_the_request(tmp_path):
    job = Job(tmp_path, wait=True, submit=lambda task: threading.Timer(0.05, task).start())
    job.train(4)
    job.keeper.begin(4)  # returns when the directory is there
    job.keeper.step()
    for writer in job.writers:
        assert writer.step()
    request = job.counters.get("checkpoint")
    assert [job.counters.get(f"written/{rank}") for rank in (0, 1)] == [request, request]


def test_the_longest_time_that_a_loop_was_held_is_reported(tmp_path, caplog):
    caplog.set_level("INFO")
    job = Job(tmp_path)
    job.keeper.begin(2)
    job.keeper.step()
    for writer in job.writers:
        job.write(writer)
    job.counters.set("held/0", 1_000)
    job.counters.set("held/1", 12_345)
    job.keeper.step()
    assert "held for at most 12.3 ms (rank 1)" in caplog.text


@pytest.mark.parametrize(("held_us", "wait", "warned"), [(199_000, False, 0), (201_000, False, 1), (201_000, True, 0)])
def test_a_loop_held_for_more_than_a_fiftieth_of_the_period_is_warned_of(tmp_path, caplog, held_us, wait, warned):
    job = Job(tmp_path, wait=wait)
    job.keeper.begin(2)
    job.keeper.step()
    for writer in job.writers:
        job.write(writer)
    job.counters.set("held/1", held_us)
    job.keeper.step()
    assert job.keeper._state == "done"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert (
        sum("held rank 1 for 201.0 ms, more than 2 % of checkpoint.period_seconds (10)" in w for w in warnings)
        == warned
    )
    assert len(warnings) == warned


def test_the_checkpoint_of_the_best_evaluation_is_kept(tmp_path):
    job = Job(tmp_path, keep_last=1)
    job.keeper.evaluated(2, 5.0, episodes=10)  # no checkpoint yet: it counts for the next
    for update in (3, 4):
        job.take(update)
    assert read_best(tmp_path)[:3] == ("step-000000000003", 2, 5.0)
    job.keeper.evaluated(3, 4.0, episodes=10)
    job.keeper.evaluated(4, 6.0, episodes=10)
    for update in (5, 6):
        job.take(update)
    assert job.names() == ["best.json", "step-000000000004", "step-000000000006"]


def test_of_several_evaluations_between_two_checkpoints_the_best_counts(tmp_path):
    job = Job(tmp_path)
    for update, mean_return in ((3, 1.0), (4, 7.0), (5, 2.0)):
        job.keeper.evaluated(update, mean_return, episodes=10)
    job.take(6)
    assert read_best(tmp_path)[:3] == ("step-000000000006", 4, 7.0)


def test_a_replay_memory_is_an_owner(tmp_path):
    lanes = local_lanes(1, (3,), np.int32, capacity=20, stack=2, n_step=1)
    owner = ReplayState(3, lanes, capacity=18)
    assert owner.name == "replay-3"
    owner.cut()(tmp_path / "replay-3.h5")
    with ReplayFile(tmp_path / "replay-3.h5") as file:
        assert (file.shape, file.slots) == ((1, 18, 2, 1), 20)


def _with_an_actor(job):
    """Let rank 1 own the state of an actor, which a checkpoint may lack."""
    job.shards[1].kind, job.writers[1].owners[0].name = "actor", "actor-1"
    job.keeper.owners[1] = ["actor-1"]


def test_a_silent_rank_is_left_out_and_asked_again(tmp_path, caplog):
    job = Job(tmp_path)
    _with_an_actor(job)
    job.keeper.begin(3)
    job.keeper.step()
    job.write(job.writers[0])
    job.keeper.step()
    assert job.keeper.busy
    job.silent = {1}
    for _ in range(3):
        job.keeper.step()
    newest, _ = checkpoints.latest(tmp_path)
    assert (newest.owners, newest.absent) == (("parameter_server-0",), ("actor-1",))
    assert "checkpoint of update 3: without actor-1, as rank 1 is silent" in caplog.text
    job.silent = set()
    job.write(job.writers[1])  # it is back, and finds nothing to write into
    assert sorted(path.name for path in newest.path.iterdir()) == ["manifest.json", "parameter_server-0.h5"]
    job.take(4)
    assert checkpoints.latest(tmp_path)[0].absent == ()


def test_a_rank_that_falls_silent_while_it_writes_is_not_waited_for(tmp_path):
    job = Job(tmp_path)
    job.writers[1].owners.append(Memory())
    _with_an_actor(job)
    job.keeper.owners[1].append("replay-0")
    job.keeper.begin(3)
    job.keeper.step()
    job.write(job.writers[0])
    job.writers[1].step()
    for _ in range(3):
        job.keeper.step()
    assert job.keeper.busy  # still writing is no reason to be left out
    job.silent = {1}
    for _ in range(3):
        job.keeper.step()
    assert checkpoints.latest(tmp_path)[0].absent == ("actor-1", "replay-0")
    job.writers[1].owners[1].released.set()


def test_a_rank_that_is_still_writing_is_waited_for(tmp_path):
    job = Job(tmp_path)
    job.writers[1].owners.append(Memory())
    job.keeper.owners[1].append("replay-0")
    job.keeper.begin(3)
    job.keeper.step()
    job.write(job.writers[0])
    job.writers[1].step()
    for _ in range(3):
        job.keeper.step()
    assert job.keeper.busy
    job.writers[1].owners[1].released.set()
    job.writers[1]._thread.join()
    job.writers[1].step()
    job.keeper.step()
    assert "replay-0" in checkpoints.latest(tmp_path)[0].owners


def test_what_was_written_since_the_last_checkpoint_is_worth_another_of_the_same_update(tmp_path):
    job = Job(tmp_path)
    job.take(0)
    job.frames = 12
    job.keeper.begin(0)
    assert job.keeper.busy


def test_the_counts_in_the_manifest_are_those_of_the_cut(tmp_path):
    job = Job(tmp_path)
    job.keeper.begin(3)
    job.keeper.step()
    job.train(5)
    job.keeper.cut()
    job.train(9)
    for writer in job.writers:
        job.write(writer)
    job.keeper.step()
    newest, _ = checkpoints.latest(tmp_path)
    assert (newest.global_update, newest.attributes["total_frames"]) == (3, 20)
