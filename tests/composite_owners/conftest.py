import pytest

from .counters import COUNTERS


@pytest.fixture(autouse=True)
def healed(_own_keys: None, transactional_db: None) -> None:
    """From here on reads trust Redis."""
    for counter in COUNTERS:
        counter.heal()
