"""Replay files: every record that was there at the cut comes back, unless it was overwritten before it was copied."""

import os
import sys
import threading

import numpy as np
import pytest

from hpcrl.errors import StorageError
from hpcrl.replay import Lanes, LocalCursors, record_dtype
from hpcrl.storage import codec, schema
from hpcrl.storage import replay as replay_files
from hpcrl.storage.replay import Priorities, ReplayCut, ReplayFile

STACK, N_STEP, CAPACITY = 2, 1, 300
CODECS = [pytest.param(name, id=name) for name in ("zstd", "gzip")]


class Memory:
    """Lanes whose records say their lane and absolute index in every field."""

    def __init__(self, num_lanes=3, capacity=CAPACITY, obs_shape=(5,)):
        memory = np.zeros((num_lanes, capacity + STACK + N_STEP), record_dtype(obs_shape, np.dtype(np.int32)))
        self.lanes = Lanes(memory, LocalCursors(num_lanes), capacity=capacity, stack=STACK, n_step=N_STEP)
        self.written = np.zeros(num_lanes, int)

    def write(self, lane, count):
        for _ in range(count):
            index = self.written[lane]
            self.lanes.append(
                np.array([lane]),
                np.full((1, *self.lanes.obs_shape), 10_000 * lane + index),
                action=index % 9,
                reward=index / 2,
                terminated=index % 5 == 0,
                truncated=False,
                first=index == 0,
            )
            self.written[lane] += 1

    def cut(self, priorities=None):
        lanes = self.lanes
        return ReplayCut(
            lanes.memory, lanes.cursors, capacity=lanes.capacity, stack=STACK, n_step=N_STEP, priorities=priorities
        )


@pytest.fixture(params=CODECS)
def any_codec(request, monkeypatch):
    if request.param == "gzip":
        monkeypatch.setattr(codec, "hdf5plugin", None)
    assert codec.best().name == request.param


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(replay_files, "CHUNK_RECORDS", 16)
    monkeypatch.setattr(replay_files, "CHUNK_BYTES", 16)


def check_lane(file, lane, begin, end):
    """That the file holds exactly the records ``begin`` to ``end`` of a lane."""
    assert (file.begin[lane], file.end[lane]) == (begin, end)
    index = np.arange(begin, end)
    outcomes = file.outcomes(lane)
    np.testing.assert_array_equal(outcomes["action"], index % 9)
    np.testing.assert_array_equal(outcomes["reward"], (index / 2).astype(np.float32))
    np.testing.assert_array_equal(outcomes["terminated"], index % 5 == 0)
    parts = list(file.frames(lane))
    assert [first for first, _ in parts] == np.cumsum([0, *(len(frames) for _, frames in parts[:-1])]).tolist()[
        : len(parts)
    ]
    frames = np.concatenate([frames for _, frames in parts]) if parts else np.zeros((0, 5))
    np.testing.assert_array_equal(frames, np.repeat(10_000 * lane + index, 5).reshape(-1, 5))


@pytest.mark.parametrize("counts", [(0, 0, 0), (1, 299, 300), (301, 17, 1000)])
def test_every_record_comes_back(tmp_path, small_chunks, any_codec, counts):
    memory = Memory()
    for lane, count in enumerate(counts):
        memory.write(lane, count)
    memory.cut().write(tmp_path / "replay-0.h5")
    with ReplayFile(tmp_path / "replay-0.h5") as file:
        assert file.shape == (3, CAPACITY, STACK, N_STEP)
        assert not file.has_priorities
        for lane, count in enumerate(counts):
            check_lane(file, lane, max(0, count - CAPACITY), count)


def test_equal_memories_make_equal_chunks(tmp_path, small_chunks, any_codec):
    """Whatever thread packed which, and also where a lane ends within a chunk."""
    memory = Memory()
    for lane, count in enumerate((470, 299, 40)):
        memory.write(lane, count)
    contents = set()
    for number in range(5):
        memory.cut().write(tmp_path / f"replay-{number}.h5")
        with ReplayFile(tmp_path / f"replay-{number}.h5") as file:
            dataset = file._frame.id
            places = [dataset.get_chunk_info(index).chunk_offset for index in range(dataset.get_num_chunks())]
            contents.add(tuple((place, dataset.read_direct_chunk(place)[1]) for place in places))
    assert len(contents) == 1
    assert len(places) == 19 + 19 + 3


def test_large_frames_and_small_ones_make_chunks_of_a_megabyte(tmp_path):
    for obs_shape, records in (((210, 160), 64), ((60, 60), 72), ((5,), CAPACITY)):
        memory = Memory(1, obs_shape=obs_shape)
        memory.write(0, 400)
        path = tmp_path / f"replay-{records}.h5"
        memory.cut().write(path)
        with ReplayFile(path) as file:
            assert file._frame.chunks == (1, records, *obs_shape)


def test_priorities_come_with_their_records(tmp_path, small_chunks):
    memory = Memory(2)
    memory.write(0, 470)
    memory.write(1, 30)
    priorities = np.arange(2 * CAPACITY, dtype=np.float64).reshape(2, CAPACITY)
    low = np.array([175, 0])
    cut = memory.cut(Priorities(priorities, low, 9.5))
    low[:] = 0
    priorities[:] = -1  # learners go on setting them
    cut.write(tmp_path / "replay-0.h5")
    with ReplayFile(tmp_path / "replay-0.h5") as file:
        assert file.has_priorities
        assert (file.priority_low.tolist(), file.priority_highest) == ([175, 0], 9.5)
        np.testing.assert_array_equal(file.priorities(0), np.arange(170, 470) % CAPACITY)
        np.testing.assert_array_equal(file.priorities(1), CAPACITY + np.arange(30))


@pytest.mark.parametrize("held", [0, 64])
@pytest.mark.parametrize("pace", [1, 5, 15, 40])
def test_what_is_overwritten_meanwhile_is_left_out_and_nothing_else_is_spoilt(
    tmp_path, small_chunks, monkeypatch, pace, held
):
    """Between any two chunks, the actor writes ``pace`` records to each of two full lanes."""
    monkeypatch.setattr(replay_files, "HELD_RECORDS", held)
    memory = Memory()
    for lane, count in enumerate((1000, 700, 100)):
        memory.write(lane, count)
    best, behind, turn = codec.best(), [], threading.Lock()

    def compress(data):
        with turn:
            memory.write(0, pace)
            memory.write(1, pace)
            behind.append(memory.written[0] - 1000)
            return bytes(best.compress(data))

    monkeypatch.setattr(codec, "best", lambda: best._replace(compress=compress))
    memory.cut().write(tmp_path / "replay-0.h5")
    with ReplayFile(tmp_path / "replay-0.h5") as file:
        for lane, count in enumerate((1000, 700, 100)):
            check_lane(file, lane, int(file.begin[lane]), count)
        lost = file.begin - np.maximum(np.array([1000, 700, 100]) - CAPACITY, 0)
    assert lost[2] == 0
    assert (lost[:2] <= behind[-1]).all()
    if pace == 1 and held:
        assert not lost.any()  # the copies of the oldest give the writer of the file its head start
    if pace == 40:
        assert lost[0] > 100


def test_a_writer_that_laps_the_file_leaves_an_empty_lane(tmp_path, small_chunks, monkeypatch):
    memory = Memory(1)
    memory.write(0, 400)
    best, turn = codec.best(), threading.Lock()

    def compress(data):
        with turn:
            memory.write(0, CAPACITY)
            return bytes(best.compress(data))

    monkeypatch.setattr(codec, "best", lambda: best._replace(compress=compress))
    memory.cut().write(tmp_path / "replay-0.h5")
    with ReplayFile(tmp_path / "replay-0.h5") as file:
        check_lane(file, 0, 400, 400)


def test_records_being_written_at_the_cut_are_left_out(tmp_path):
    memory = Memory(1)
    memory.write(0, 400)
    memory.lanes.cursors.reserve(np.array([0]), 2)
    memory.cut().write(tmp_path / "replay-0.h5")
    with ReplayFile(tmp_path / "replay-0.h5") as file:
        check_lane(file, 0, 102, 400)


def test_other_files_are_refused(tmp_path, monkeypatch):
    memory = Memory(1)
    memory.write(0, 10)
    path = tmp_path / "replay-0.h5"
    memory.cut().write(path)
    with pytest.raises(StorageError, match="replay-0.h5: File exists"):
        memory.cut().write(path)
    monkeypatch.setitem(schema.VERSIONS, "replay", 2)
    with pytest.raises(StorageError, match="expected 'replay' version 2, found version 1"):
        ReplayFile(path)
    with pytest.raises(StorageError, match="nothing.h5: No such file"):
        ReplayFile(tmp_path / "nothing.h5")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of single threads")
def test_packers_run_behind_the_thread_that_trains(tmp_path, monkeypatch):
    memory, pack, seen = Memory(), ReplayCut._pack, set()
    memory.write(0, 50)
    own = os.getpriority(os.PRIO_PROCESS, 0)

    def packing(*arguments):
        seen.add(os.getpriority(os.PRIO_PROCESS, 0))  # of this thread
        return pack(*arguments)

    monkeypatch.setattr(ReplayCut, "_pack", packing)
    memory.cut().write(tmp_path / "replay.h5")
    assert seen == {max(own, replay_files.PACKER_NICENESS)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
