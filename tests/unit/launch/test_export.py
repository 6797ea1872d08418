"""What other programs read is what the run's own files hold."""

import csv
import json
import struct
from pathlib import Path

import h5py
import numpy as np
import pandas
import pytest
import torch

from hpcrl.analysis import export, load
from hpcrl.analysis.tensorboard import crc32c, write_events
from hpcrl.config import from_dict
from hpcrl.errors import ConfigError, StorageError
from hpcrl.launch.agents import Agent, load_agent
from hpcrl.launch.export import to_file, to_minari, to_onnx
from hpcrl.launch.sizes import new_network
from hpcrl.storage.replay import ReplayFile

GOLDEN = Path(__file__).parents[2] / "golden" / "0.1.0" / "run"
CHECKPOINT = GOLDEN / "checkpoints" / "step-000000000080"


@pytest.fixture(scope="module")
def run():
    return load(GOLDEN)


def test_csv_gives_the_same_numbers_back(run, tmp_path):
    for path in export.to_csv(run, tmp_path):
        with open(path, newline="") as stream:
            head, *rows = csv.reader(stream)
        columns = run.tables[path.stem]
        assert head == list(columns)
        for name, values in zip(head, zip(*rows, strict=True), strict=True):
            np.testing.assert_array_equal(np.array(values, np.float64), columns[name].astype(np.float64))
    with pytest.raises(StorageError, match="cannot write .*File exists; nothing is overwritten"):
        export.to_csv(run, tmp_path)


def test_parquet_gives_the_same_numbers_back(run, tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for path in export.to_parquet(run, tmp_path):
        pandas.testing.assert_frame_equal(pandas.read_parquet(path), run.frame(path.stem))


def test_checksum_is_crc_32c():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the algorithm
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_events_are_records_of_messages(tmp_path):
    write_events(tmp_path / "events", [(1.5, 300, {"a/b": 0.25})])
    data, messages = (tmp_path / "events").read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        messages.append(data[12 : 12 + length])
        data = data[16 + length :]
    assert messages[0].endswith(b"brain.Event:2")
    value = b"\x0a\x03a/b\x15" + struct.pack("<f", 0.25)
    summary = b"\x0a" + bytes([len(value)]) + value
    expected = b"\x09" + struct.pack("<d", 1.5) + b"\x10\xac\x02" + b"\x2a" + bytes([len(summary)]) + summary
    assert messages[1] == expected


def test_tensorboard_reads_what_is_written_for_it(run, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = export.to_tensorboard(run, tmp_path)
    found = EventAccumulator(str(path), size_guidance={"scalars": 0})
    found.Reload()
    episodes, scalars = run.tables["episodes"], found.Scalars("episodes/episode_return")
    assert [scalar.step for scalar in scalars] == episodes["total_frames"].tolist()
    assert [scalar.value for scalar in scalars] == episodes["episode_return"].tolist()


def test_a_state_dict_loads_into_the_network(tmp_path):
    to_file(GOLDEN, "newest", "state_dict", tmp_path / "agent.pt")
    agent = load_agent(GOLDEN)
    network = agent.network()
    torch.nn.init.zeros_(next(network.parameters()))
    network.load_state_dict(torch.load(tmp_path / "agent.pt", weights_only=True))
    flat = torch.nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    np.testing.assert_array_equal(flat, agent.params)
    with pytest.raises(StorageError, match="nothing is overwritten"):
        to_file(GOLDEN, "newest", "state_dict", tmp_path / "agent.pt")


def test_onnx_computes_what_the_network_does(tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    to_file(GOLDEN, "newest", "onnx", tmp_path / "agent.onnx")
    observation = np.random.default_rng(1).integers(0, 256, (5, 1, 10, 5)).astype(np.uint8)
    (values,) = runtime.InferenceSession(tmp_path / "agent.onnx").run(None, {"observation": observation})
    with torch.no_grad():
        expected = load_agent(GOLDEN).network()(torch.from_numpy(observation)).numpy()
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_onnx_computes_what_a_network_of_frames_does(tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    config = from_dict({"env": {"id": "ALE/Pong-v5"}, "network": {"kind": "nature"}})
    params = torch.cat([p.detach().reshape(-1) for p in new_network(config).parameters()]).numpy()
    agent = Agent(config, params, 0, "nowhere")
    to_onnx(agent, tmp_path / "agent.onnx")
    observation = np.random.default_rng(1).integers(0, 256, (5, 4, 84, 84)).astype(np.uint8)
    (values,) = runtime.InferenceSession(tmp_path / "agent.onnx").run(None, {"observation": observation})
    with torch.no_grad():
        expected = agent.network()(torch.from_numpy(observation)).numpy()
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)


def test_minari_holds_the_whole_episodes_of_the_replay_memory(tmp_path):
    count = to_minari(GOLDEN, tmp_path / "set")
    metadata = json.loads((tmp_path / "set" / "data" / "metadata.json").read_text())
    assert metadata["total_episodes"] == count > 0
    with (
        ReplayFile(CHECKPOINT / "replay-0.h5") as replay,
        h5py.File(tmp_path / "set" / "data" / "main_data.hdf5") as file,
    ):
        steps = sum(int((replay.outcomes(lane)["final"] == 0).sum()) for lane in range(replay.shape.num_lanes))
        assert len(file) == count
        lengths = [len(file[f"episode_{k}/actions"]) for k in range(count)]
        # Catch ends after as many steps as its ball has rows to fall; what is left are episodes under way.
        assert set(lengths) == {len(file["episode_0/observations"]) - 1}
        assert metadata["total_steps"] == sum(lengths) <= steps < sum(lengths) + 2 * lengths[0] * replay.shape.num_lanes
        for k in range(count):
            episode = file[f"episode_{k}"]
            assert len(episode["observations"]) == len(episode["actions"]) + 1
            assert episode["terminations"][()].tolist() == [False] * (lengths[k] - 1) + [True]
            assert np.abs(episode["rewards"][()]).tolist() == [0.0] * (lengths[k] - 1) + [1.0]
            # The ball falls one row each step, from the first frame to the last.
            balls = [int(np.argwhere(frame)[:, 0].min()) for frame in episode["observations"]]
            assert balls == list(range(lengths[k] + 1))
    with pytest.raises(StorageError, match="it exists"):
        to_minari(GOLDEN, tmp_path / "set")


def test_minari_itself_reads_it(tmp_path):
    minari = pytest.importorskip("minari", reason="minari is not installed")
    count = to_minari(GOLDEN, tmp_path / "set")
    found = minari.MinariDataset(tmp_path / "set" / "data")
    assert found.total_episodes == count
    episode = next(iter(found))
    assert episode.observations.shape == (len(episode.actions) + 1, 10, 5)


def test_what_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ConfigError, match="pip install onnx onnxscript"):
        to_file(GOLDEN, "newest", "onnx", tmp_path / "agent.onnx")
