from typing import Any
from uuid import UUID

import pytest

from .models import Agent, Queue
from .support import assert_stored, heal

ANN, BEN, DESK = 10**6, 10**6 + 1, UUID(int=5)  # primary keys


@pytest.fixture(autouse=True)
def healed(_own_keys: None, transactional_db: None) -> None:
    """From here on reads trust Redis."""
    heal()


@pytest.fixture
def ann() -> Agent:
    return Agent.objects.create(pk=ANN, name="ann")


@pytest.fixture
def ben() -> Agent:
    return Agent.objects.create(pk=BEN, name="ben")


@pytest.fixture
def desk() -> Queue:
    return Queue.objects.create(pk=DESK)


@pytest.fixture
def owners(ann: Agent, ben: Agent, desk: Queue) -> Any:
    """Their keys. In the end the stored totals must be right, too."""
    keys = [ann.pk, ben.pk, desk.pk]
    yield keys
    assert_stored(keys)
