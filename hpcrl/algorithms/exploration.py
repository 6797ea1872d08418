"""Exploration schedules."""


def linear(step: int, start: float, end: float, length: int) -> float:
    """Linear from ``start`` at 0 to ``end`` at ``length``, then constant (Nature DQN; Gorila: in global updates)."""
    return end if step >= length else start + (end - start) * step / length
