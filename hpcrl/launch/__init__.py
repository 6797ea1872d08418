"""Start-up: the rank map, the wiring and the commands that run across ranks."""
