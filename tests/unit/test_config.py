"""The configuration: defaults, resolution, faults all at once, and the round trip through TOML."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrl.config import Config, from_dict, keys, load, to_toml
from hpcrl.errors import ConfigError
from hpcrl.replay.lanes import shortest_capacity

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def write(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(raw):
    """The lines of the error, without the head."""
    with pytest.raises(ConfigError) as caught:
        from_dict(raw)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_empty_file_is_all_defaults(tmp_path):
    config = load(write(tmp_path, ""))
    assert config == Config()
    assert config.run.dir == Path("runs/run")
    assert config.learning.learning_rate == 0.01
    assert config.env.stack == 4


def test_every_fault_is_listed_at_once_with_key_expected_got_and_near_match():
    lines = faults_of(
        {
            "topolgy": {},
            "topology": {"layout": "bundeld", "servers": True},
            "learning": {"bacth_size": 3, "n_step": 2, "batch_size": 40_000},
            "replay": {"n_step": "3"},
            "log": 5,
            "env": {"protocol": "dopamine", "noop_max": 30},
        }
    )
    assert lines == [
        "topolgy: unknown section; did you mean topology?",
        "log: expected a table [log], got 5",
        "topology.layout: expected 'serial', 'bundled', 'split' or 'sampler_learner', got 'bundeld'; "
        "did you mean bundled?",
        "topology.servers: expected integer, got True",
        "replay.n_step: expected integer, got '3'",
        "learning.bacth_size: unknown key; did you mean learning.batch_size?",
        "learning.n_step: unknown key; did you mean replay.n_step?",
        "env.noop_max: expected 0, because protocol 'dopamine' fixes it (or choose protocol 'custom'), got 30",
        "learning.batch_size: expected at most replay.learning_starts_steps = 5000, got 40000",
    ]


def test_no_cross_fault_about_a_key_that_is_itself_faulty():
    assert len(faults_of({"replay": {"learning_starts_steps": "many"}, "learning": {"batch_size": 6000}})) == 1


@pytest.mark.parametrize(
    ("section", "values", "blamed"),
    [
        ("replay", {"capacity_steps": 1000, "learning_starts_steps": 1001}, "replay.learning_starts_steps"),
        ("replay", {"capacity_steps": 55, "learning_starts_steps": 32}, "replay.capacity_steps"),
        ("replay", {"priority_beta_start": 0.5, "priority_beta_end": 0.4}, "replay.priority_beta_end"),
        ("exploration", {"epsilon_start": 0.1, "epsilon_end": 0.2}, "exploration.epsilon_end"),
        ("learning", {"optimizer": "adam", "momentum": 0.9}, "learning.momentum"),
        ("learning", {"optimizer": "adam", "optimizer_epsilon": 0.0}, "learning.optimizer_epsilon"),
        ("run", {"stall_seconds": 10.0}, "run.stall_seconds"),
        ("run", {"dir": "runs/{seed}"}, "run.dir"),
        ("run", {"name": "a/b"}, "run.name"),
        ("topology", {"layout": "serial", "servers": 2}, "topology.servers"),
        ("topology", {"layout": "serial", "monitor": "own"}, "topology.monitor"),
        ("topology", {"layout": "split", "bundles": 2}, "topology.bundles"),
        ("topology", {"layout": "bundled", "actors": 2}, "topology.actors"),
        ("env", {"id": "CartPole-v1", "frame_skip": 4}, "env.frame_skip"),
        ("env", {"id": "catch", "protocol": "nature"}, "env.protocol"),
        ("env", {"autoreset": "same_step"}, "env.autoreset"),
        ("env", {"stuck_frames": 3}, "env.stuck_frames"),
        ("env", {"protocol": "dopamine", "stuck_frames": 400}, "env.stuck_frames"),
        ("env", {"id": "catch", "screen": "104x80"}, "env.screen"),
        ("env", {"max_episode_frames": 0}, "env.max_episode_frames"),
        ("network", {"kind": "resnet"}, "network.kind"),
        ("network", {"kind": "own:Net", "dueling": True}, "network.dueling"),
        ("network", {"hidden": [64, 0]}, "network.hidden.1"),
        ("network", {"kind": "impala", "layer_norm": True}, "network.layer_norm"),
        ("network", {"atoms": 1}, "network.atoms"),
        ("network", {"support": [1.0, 1.0]}, "network.support"),
        ("server", {"slots": 2}, "server.slots"),
        ("learning", {"learning_rate": float("nan")}, "learning.learning_rate"),
    ],
)
def test_fault_names_the_key(section, values, blamed):
    (line,) = faults_of({section: values})
    assert line.startswith(f"{blamed}: expected "), line


@pytest.mark.parametrize(
    ("protocol", "sticky", "noops", "full", "life_loss"),
    [
        ("nature", 0.0, 30, False, "terminate"),
        ("dopamine", 0.25, 0, False, "ignore"),
        ("machado", 0.25, 0, True, "ignore"),
        ("saber", 0.25, 0, True, "ignore"),
    ],
)
def test_protocol_fills_what_is_unset(protocol, sticky, noops, full, life_loss):
    env = from_dict({"env": {"protocol": protocol}}).env
    assert (env.sticky_probability, env.noop_max, env.full_action_space, env.life_loss) == (
        sticky,
        noops,
        full,
        life_loss,
    )
    assert not env.fire_reset
    assert (env.stuck_frames, env.max_episode_frames) == ((18_000, 21_600_000) if protocol == "saber" else (0, 108_000))


def test_key_equal_to_its_protocol_is_no_conflict():
    assert from_dict({"env": {"protocol": "nature", "noop_max": 30}}).env.noop_max == 30


def test_environment_that_is_not_atari_shows_what_is_true_of_it():
    env = from_dict({"env": {"id": "CartPole-v1"}}).env
    assert (env.frame_skip, env.stack, env.max_episode_frames) == (1, 1, 0)
    assert from_dict({"env": {"id": "CartPole-v1", "stack": 4}}).env.stack == 4


def test_arguments_are_those_of_the_environment_makers():
    arguments = Config().env.arguments(threads=3)
    assert arguments["threads"] == 3
    assert not {"protocol", "simulators"} & set(arguments)


def test_a_distribution_decides_its_atoms_and_has_its_own_loss():
    assert [from_dict({"network": {"distribution": d}}).network.atoms for d in ("categorical", "quantile")] == [51, 200]
    assert from_dict({"network": {"distribution": "quantile", "atoms": 20}}).network.atoms == 20
    (line,) = faults_of({"network": {"distribution": "categorical"}, "learning": {"loss": "mse"}})
    assert line.startswith("learning.loss: expected it unset with network.distribution 'categorical'")


def test_optimizer_decides_rate_and_epsilon_unless_set():
    learning = from_dict({"learning": {"optimizer": "adam", "learning_rate": 1e-3}}).learning
    assert (learning.learning_rate, learning.optimizer_epsilon) == (1e-3, 1.5e-4)


def test_the_rate_is_constant_unless_a_final_one_is_set():
    learning = from_dict({"learning": {"learning_rate": 0.5}}).learning
    assert (learning.learning_rate, learning.learning_rate_final) == (0.5, 0.5)
    assert from_dict({}).learning.learning_rate_final == from_dict({}).learning.learning_rate
    assert from_dict({"learning": {"learning_rate_final": 0.0}}).learning.learning_rate_final == 0.0
    assert len(faults_of({"learning": {"learning_rate": "fast"}})) == 1


def test_overrides_are_toml_values_else_text(tmp_path):
    config = load(
        write(tmp_path, "[learning]\nlearning_rate = 0.1\n[env]\nid = 'catch'\n"),
        [
            "learning.learning_rate=1e-4",
            "run.name=7",
            "topology.layout=split",
            "network.hidden=[32]",
            "network.kind='mlp'",
            "run.lock_step=true",
            "env.kwargs.rows=12",
            "run.seed=3",
            "run.seed=4",
        ],
    )
    assert config.learning.learning_rate == 1e-4
    assert config.run.name == "7"
    assert config.run.dir == Path("runs/7")
    assert config.topology.layout == "split"
    assert config.network.hidden == (32,)
    assert config.network.kind == "mlp"
    assert config.run.lock_step is True
    assert config.env.kwargs == {"rows": 12}
    assert config.run.seed == 4


def test_malformed_overrides_are_listed_with_the_other_faults(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "[run]\nseed = -1\n"), ["foo", "foo=1", "run.seed.x=1", "run.sed=1"])
    text = str(caught.value)
    assert "5 faults" in text
    for part in ("--set foo:", "--set foo=1:", "--set run.seed.x=1:", "run.sed: unknown key; did you mean run.seed?"):
        assert part in text


def test_paths_are_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.delenv("NOPE", raising=False)
    path = write(tmp_path, "[run]\nname = 'a'\ndir = '$SCRATCH/runs/{name}'\n")
    assert load(path).run.dir == Path("/scratch/me/runs/a")
    assert load(path, ["run.dir=~/x"]).run.dir == Path.home() / "x"
    with pytest.raises(ConfigError, match=r"run\.dir: expected a path whose variables are all set \(\$NOPE is not\)"):
        load(path, ["run.dir=$NOPE/x"])


def test_unreadable_file_or_broken_toml_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="expected TOML, got: .*line 2"):
        load(write(tmp_path, "[run]\nname = \n"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="expected TOML"):
        load(tmp_path / "binary.toml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_load_and_survive_the_round_trip(path, tmp_path):
    config = load(path)
    assert config.run.name == path.stem
    assert load(write(tmp_path, to_toml(config))) == config


def test_the_readme_names_every_shipped_configuration():
    readme = (CONFIGS[0].parents[1] / "README.md").read_text()
    assert len(CONFIGS) >= 6
    assert [path.name for path in CONFIGS if f"`{path.name}`" not in readme] == []


@settings(max_examples=50, deadline=None)
@given(
    kwargs=st.dictionaries(
        st.text(min_size=1),
        st.recursive(
            st.booleans()
            | st.integers(-(2**63), 2**63 - 1)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(exclude_categories=["Cs"])),
            lambda values: st.lists(values) | st.dictionaries(st.text(min_size=1), values),
        ),
    ),
    rate=st.floats(1e-30, 1e3),
    name=st.from_regex(r"[a-z0-9._+-]+", fullmatch=True),
)
def test_any_resolved_configuration_survives_the_round_trip(tmp_path_factory, kwargs, rate, name):
    config = from_dict(
        {
            "run": {"name": name},
            "env": {"id": "CartPole-v1", "kwargs": kwargs},
            "learning": {"learning_rate": rate, "optimizer": "rmsprop"},
        }
    )
    assert load(write(tmp_path_factory.mktemp("round"), to_toml(config))) == config


def test_to_toml_comments_every_key():
    lines = to_toml(Config()).splitlines()
    for above, line in pairwise(lines):
        if " = " in line and not line.startswith("#"):
            assert above.startswith("# "), line


def test_keys_lists_every_key_with_type_default_and_description():
    rows = {key.name: key for key in keys()}
    assert rows["learning.batch_size"][1:3] == ("int", 32)
    assert rows["topology.layout"].type == '"serial" | "bundled" | "split" | "sampler_learner"'
    assert str(rows["run.dir"].default) == "runs/{name}"
    assert all(key.description for key in rows.values())
    assert len(rows) == sum(len(type(section).model_fields) for _, section in Config())


def test_configuration_never_changes():
    with pytest.raises(ValueError, match="frozen"):
        Config().run.seed = 2


def test_shortest_lane_is_the_one_that_replay_accepts():
    least = Config().env.simulators * shortest_capacity(stack=4, n_step=3)
    raw = {"capacity_steps": least, "learning_starts_steps": 32, "n_step": 3}
    assert from_dict({"replay": raw}).replay.capacity_steps == least
    assert len(faults_of({"replay": {**raw, "capacity_steps": least - 1}})) == 1
    # A lane of the global memory also has room for what its writer overwrites at once: steps, each with a final frame.
    raw |= {"place": "global", "send_period_steps": 5}
    least += Config().env.simulators * 2 * 5
    assert from_dict({"replay": {**raw, "capacity_steps": least}}).replay.capacity_steps == least
    assert len(faults_of({"replay": {**raw, "capacity_steps": least - 1}})) == 1


def test_every_fault_of_replay_is_told_at_once():
    replay = {
        "capacity_steps": 10,
        "learning_starts_steps": 20,
        "sampling": "prioritized",
        "priority_alpha": 1.5,
        "priority_beta_start": -0.1,
    }
    faults = faults_of({"replay": replay, "learning": {"batch_size": 64}, "topology": {"learners": 0}})
    keys = {fault.split(":")[0] for fault in faults}
    assert keys >= {"replay.priority_alpha", "replay.priority_beta_start", "topology.learners"}
    right = {**replay, "priority_alpha": 0.6, "priority_beta_start": 0.4, "priority_beta_end": 0.3}
    faults = faults_of({"replay": right, "learning": {"batch_size": 64}})
    keys = {fault.split(":")[0] for fault in faults}
    assert keys >= {
        "replay.capacity_steps",
        "replay.learning_starts_steps",
        "replay.priority_beta_end",
        "learning.batch_size",
    }


def test_what_synchronous_learners_cannot_have():
    wrong = {
        "topology": {"layout": "bundled", "servers": 2, "evaluators": 2, "monitor": "own"},
        "run": {"lock_step": True},
        "replay": {"place": "global"},
        "learning": {"update": "allreduce", "virtual_delay": "3"},
        "learner": {"pipeline": 1, "pull_period_updates": 2},
        "log": {"apply_order": True},
    }
    with pytest.raises(ConfigError) as error:
        from_dict(wrong)
    faults = str(error.value).splitlines()[1:]
    assert len(faults) == 10
    assert all("with learning.update = 'allreduce'" in fault for fault in faults)
    right = from_dict({"topology": {"layout": "sampler_learner"}, "learning": {"update": "allreduce"}})
    assert right.rank_map()["servers"] == 0


def test_an_algorithm_has_defaults_of_its_own():
    ppo, a2c = from_dict({"learning": {"algorithm": "ppo"}}), from_dict({"learning": {"algorithm": "a2c"}})
    assert (ppo.learning.optimizer, ppo.learning.learning_rate, ppo.learning.max_gradient_norm) == ("adam", 2.5e-4, 0.5)
    assert (a2c.learning.optimizer, a2c.policy.horizon_steps, a2c.policy.epochs) == ("rmsprop", 5, 1)
    assert ppo.learning.learning_rate_final == ppo.learning.learning_rate
    assert not ppo.learning.uses_replay
    assert from_dict({}).learning.uses_replay


def test_those_of_its_optimizer_go_with_it():
    learning = from_dict({"learning": {"algorithm": "a2c", "optimizer": "adam"}}).learning
    assert (learning.learning_rate, learning.optimizer_epsilon) == (6.25e-5, 1.5e-4)
    assert learning.max_gradient_norm == 0.5
    assert from_dict({"learning": {"algorithm": "ppo", "learning_rate": 1e-3}}).learning.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        ({"policy": {"epochs": 2}, "learning": {"algorithm": "a2c"}}, "policy.epochs: expected 1 with algorithm 'a2c'"),
        ({"policy": {"groups": 3}}, "policy.groups: expected a divisor of env.simulators = 4, got 3"),
        ({"policy": {"minibatches": 9, "horizon_steps": 2}}, "policy.minibatches: expected at most"),
        ({"topology": {"layout": "split"}}, "topology.layout: expected 'serial'"),
        ({"replay": {"place": "global"}}, "replay.place: expected 'local' with algorithm 'ppo'"),
        ({"learner": {"pipeline": 1}}, "learner.pipeline: expected 0"),
        ({"network": {"dueling": True}}, "network.dueling: expected False"),
    ],
)
def test_what_an_algorithm_without_replay_has_no_place_for(raw, fault):
    with pytest.raises(ConfigError, match=re.escape(fault)):
        from_dict({"learning": {"algorithm": "ppo"}, **raw})


def test_a_resolved_policy_configuration_is_read_back_equal(tmp_path):
    config = from_dict({"learning": {"algorithm": "a2c", "learning_rate": 1e-3}, "policy": {"groups": 2}})
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert load(tmp_path / "config.toml") == config


def test_gradients_of_a_node_are_combined_for_servers_only_and_one_at_a_time():
    for update in ("store", "allreduce"):
        learning = {"update": update, "node_combine": True}
        faults = faults_of({"learning": learning, "topology": {"layout": "sampler_learner"}})
        assert any(line.startswith("learning.node_combine: expected False") for line in faults), faults
    (line,) = faults_of({"learning": {"node_combine": True}, "learner": {"pipeline": 1}})
    assert line == "learner.pipeline: expected 0 with learning.node_combine, got 1"


def test_a_step_is_recorded_for_dqn_only():
    faults = faults_of({"learner": {"cuda_graph": True, "compile": True}, "learning": {"algorithm": "ppo"}})
    for key in ("cuda_graph", "compile"):
        assert f"learner.{key}: expected false with algorithm 'ppo', got true" in faults


def test_what_cannot_be_summed_while_it_is_computed():
    synchronous = {"topology": {"layout": "sampler_learner"}, "learner": {"reduce_overlap": True}}
    allreduce = {"update": "allreduce"}
    from_dict({**synchronous, "learning": allreduce})
    (line,) = faults_of({**synchronous, "learning": {"update": "store"}})
    assert line == "learner.reduce_overlap: expected False with learning.update = 'store', got True"
    lines = faults_of({**synchronous, "learning": {**allreduce, "algorithm": "ga3c"}})
    assert any(line.startswith("learner.reduce_overlap: expected false with algorithm 'ga3c'") for line in lines)
    learner = {"reduce_overlap": True, "compression": "bfloat16", "cuda_graph": True}
    lines = faults_of({**synchronous, "learning": allreduce, "learner": learner})
    assert [line.split(",")[0] for line in lines] == [
        "learner.compression: expected 'none' with learner.reduce_overlap",
        "learner.cuda_graph: expected False with learner.reduce_overlap",
    ]
