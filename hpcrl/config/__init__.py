"""The configuration: every key with its type, default, unit and bounds, and the one loader that checks them all.

A configuration is a TOML file of sections. :func:`load` fills in what a protocol or an optimizer decides, checks each
key and the keys against each other, and reports every fault at once. Only ``cli`` and ``launch`` read these objects;
everything below them takes plain named arguments.
"""

from hpcrl.config.loading import Config, Key, from_dict, keys, load, to_toml, toml_value

__all__ = ["Config", "Key", "from_dict", "keys", "load", "to_toml", "toml_value"]
