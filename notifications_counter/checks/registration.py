"""Registers checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.core.checks import CheckMessage, register

TAG = "notifications_counter"
REDIS_TAG = "notifications_counter_redis"

Messages = Iterator[CheckMessage]


def check(tag: str, deploy: bool = False) -> Callable[[Callable[[], Messages]], Callable[..., list[CheckMessage]]]:
    """Register a generator of messages as a system check."""

    def decorate(messages: Callable[[], Messages]) -> Callable[..., list[CheckMessage]]:
        def run(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
            return list(messages())

        run.__name__ = messages.__name__
        return register(run, tag, deploy=deploy)

    return decorate


def id_(name: str) -> str:
    """Return the id of a check. Each id has one meaning."""
    return f"notifications_counter.{name}"
