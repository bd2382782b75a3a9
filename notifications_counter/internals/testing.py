"""For tests only: Django's tools for tests take long to import."""

from django.test.utils import TestContextDecorator

__all__ = [
    # Makes a class a context manager, and a decorator of functions, async ones, and test classes.
    "TestContextDecorator",
]
