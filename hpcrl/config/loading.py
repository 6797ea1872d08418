"""The whole configuration, and the one loader that checks it."""

import datetime
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from hpcrl.config.base import Section
from hpcrl.config.faults import cross_faults, expected, near, near_key
from hpcrl.config.learning import LearnerConfig, LearningConfig, PolicyConfig, SecondaryConfig
from hpcrl.config.presets import ALGORITHM_DEFAULTS
from hpcrl.config.sections import (
    ActorConfig,
    CheckpointConfig,
    EnvConfig,
    ExplorationConfig,
    LogConfig,
    NetworkConfig,
    ReplayConfig,
    RunConfig,
    ServerConfig,
    TopologyConfig,
)
from hpcrl.errors import ConfigError


class Config(Section):
    """The whole configuration, resolved."""

    run: RunConfig = RunConfig()
    topology: TopologyConfig = TopologyConfig()
    env: EnvConfig = EnvConfig()
    network: NetworkConfig = NetworkConfig()
    replay: ReplayConfig = ReplayConfig()
    exploration: ExplorationConfig = ExplorationConfig()
    policy: PolicyConfig = PolicyConfig()
    learning: LearningConfig = LearningConfig()
    learner: LearnerConfig = LearnerConfig()
    secondary: SecondaryConfig = SecondaryConfig()
    actor: ActorConfig = ActorConfig()
    server: ServerConfig = ServerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    def rank_map(self) -> dict[str, Any]:
        """Keyword arguments of ``hpcrl.launch.topology.plan`` that the configuration decides."""
        servers = 0 if self.learning.update == "allreduce" else self.topology.servers
        return {
            **self.topology.model_dump(exclude={"pin_simulators"}),
            "servers": servers,
            "global_replay": self.replay.place == "global",
            "replay": self.learning.uses_replay,
        }


class Key(NamedTuple):
    """One row of ``hpcrl plan --keys``."""

    name: str
    """dotted: ``section.key``"""
    type: str
    default: Any
    description: str


def load(path: str | os.PathLike, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file, apply ``section.key=value`` overrides in order, and resolve it.

    An override's value is parsed as a TOML value where that succeeds and the key is not a text, else it is the text.

    Raises
    ------
    ConfigError
        The file cannot be read, or holds faults; all of them are listed.
    """
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable configuration file, got: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML, got: {error}") from error
    faults = [fault for text in overrides if (fault := _override(raw, text))]
    return _resolve(raw, faults, f"{path}")


def from_dict(raw: Mapping[str, Any]) -> Config:
    """Resolve a configuration given as nested dictionaries; raises like :func:`load`."""
    return _resolve(raw, [], "configuration")


def to_toml(config: Config) -> str:
    """The resolved configuration as commented TOML that :func:`load` reads back to an equal one."""
    lines = []
    for name, section in config:
        lines += [f"[{name}]"]
        for key, field in type(section).model_fields.items():
            lines += [f"# {field.description}", f"{key} = {toml_value(getattr(section, key))}"]
        lines += [""]
    return "\n".join(lines)


def keys() -> list[Key]:
    """Every key in file order; a default that a protocol or optimizer decides is the one of ``Config()``."""
    rows = []
    for name, section in Config():
        for key, field in type(section).model_fields.items():
            default = getattr(section, key) if field.default is PydanticUndefined else field.default
            rows.append(Key(f"{name}.{key}", _type_name(field.annotation), default, field.description))
    return rows


def _override(raw: dict[str, Any], text: str) -> str | None:
    """Write one ``section.key=value`` into ``raw``; returns the fault if it has another form."""
    dotted, equals, value = text.partition("=")
    names = dotted.strip().split(".")
    if not equals or len(names) < 2 or not all(names):
        return f"--set {text}: expected section.key=value"
    table = raw
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            return f"--set {text}: expected {name} to be a table, got {table!r}"
    table[names[-1]] = _parse(value.strip(), as_text=_is_text(*names))
    return None


def _is_text(section: str, key: str, *rest: str) -> bool:
    fields = _sections()[section].model_fields if section in _sections() else {}
    return not rest and key in fields and _type_name(fields[key].annotation) in ("str", "path")


def _parse(text: str, as_text: bool) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if as_text and not isinstance(value, str) else value


def _sections() -> dict[str, type[Section]]:
    return {name: field.annotation for name, field in Config.model_fields.items()}


def _resolve(raw: Mapping[str, Any], faults: list[str], source: str) -> Config:
    bad: set[str] = set()
    sections = {}
    for name, value in raw.items():
        if name not in _sections():
            faults.append(f"{name}: unknown section{near(name, _sections())}")
        elif not isinstance(value, Mapping):
            bad.add(name)
            faults.append(f"{name}: expected a table [{name}], got {value!r}")
    preset = _algorithm_defaults(raw.get("learning", {}))
    for name, model in _sections().items():
        given = {} if name in bad else raw.get(name, {})
        sections[name] = _resolve_section(name, model, {**preset.get(name, {}), **given}, faults, bad)
    config = Config(**sections)
    faults += [f"{names[0]}: {text}" for names, text in cross_faults(config) if not bad.intersection(names)]
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ConfigError("\n  ".join([f"{source} has {count}:", *faults]))
    return config


def _algorithm_defaults(learning: Any) -> Mapping[str, Mapping[str, Any]]:
    """Defaults of the algorithm, by section; without those of its optimizer where that is another."""
    asked = learning if isinstance(learning, Mapping) else {}
    preset = ALGORITHM_DEFAULTS.get(str(asked.get("algorithm")), {})
    if not preset or asked.get("optimizer") in (None, preset["learning"]["optimizer"]):
        return preset
    return {**preset, "learning": {"max_gradient_norm": preset["learning"]["max_gradient_norm"]}}


def _resolve_section(name: str, model: type[Section], raw: Mapping, faults: list[str], bad: set[str]) -> Section:
    """Validate one section; where keys are faulty, note them and go on with the others, to find further faults."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        details = error.errors(include_url=False)
    names = [f"{other}.{key}" for other, sibling in _sections().items() for key in sibling.model_fields]
    for detail in details:
        dotted = f"{name}." + ".".join(map(str, detail["loc"]))
        bad.add(f"{name}.{detail['loc'][0]}")
        if detail["type"] == "extra_forbidden":
            faults.append(f"{dotted}: unknown key{near_key(dotted, names)}")
        else:
            faults.append(f"{dotted}: {expected(detail)}")
    return model.model_validate({key: value for key, value in raw.items() if f"{name}.{key}" not in bad})


def _type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in get_args(annotation))
    return {tuple: "list", dict: "table", Path: "path"}.get(origin or annotation, annotation.__name__)


def toml_value(value: Any) -> str:
    """A value as it is written in a configuration file."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
        case datetime.date() | datetime.time():
            return value.isoformat()
    raise TypeError(f"no TOML form for {value!r}")
