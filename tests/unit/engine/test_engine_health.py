"""The engine's state in one word."""

import pytest

from nanoserve.engine.engine_health import Health, HealthStatus


@pytest.mark.parametrize("status", list(HealthStatus))
def test_only_ok_is_ok(status: HealthStatus) -> None:
    """Every other state keeps new requests away."""
    assert Health(status).is_ok is (status is HealthStatus.OK)
