"""The models again, in worlds that take minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.models.cascade import model_copier, model_failover, model_join, model_switchover, model_watermark

PAGE = Path(__file__).parents[3] / "docs" / "explain" / "model.md"
MODELS = {
    "join": model_join,
    "watermark": model_watermark,
    "copier": model_copier,
    "switchover": model_switchover,
    "failover": model_failover,
}
DEEPER = [
    pytest.param(model, world, id=f"{name}: {world.name}") for name, model in MODELS.items() for world in model.DEEPER
]


@pytest.mark.soak
@pytest.mark.parametrize(("model", "world"), DEEPER)
def test_with_all_rules_every_state_of_a_larger_world_is_right(
    model: ModuleType, world: model_join.World, tell: Callable[[str], None]
) -> None:
    result = model.check(world, limit=2_000_000)
    assert result.trace is None, f"\n{result}"
    assert result.is_exhausted
    tell(f"{result.states:,} states")
    assert f"| {world.name} | {result.states:,} |" in PAGE.read_text()
