"""What the tests load besides their own: an app that declares counters and compares, and a test runner that
reports."""

import json
import os
from typing import Any
from unittest import TextTestResult, mock

from django.apps import AppConfig, apps
from django.test.runner import DiscoverRunner

REPORT = os.open(os.environ["SUITE_REPORT"], os.O_WRONLY | os.O_APPEND)


def report(**entries: Any) -> None:
    """Append a line to the report of this process."""
    os.write(REPORT, json.dumps(entries).encode() + b"\n")


class Shim(AppConfig):
    name = __package__

    def ready(self) -> None:
        """Called twice: runtests.py starts with the apps of django.contrib, and adds those of the tests later."""
        from . import counted

        counted.install()


class Result(TextTestResult):
    running = ""

    def startTest(self, test: Any) -> None:
        Result.running = test.id()
        super().startTest(test)


class Runner(DiscoverRunner):
    def build_suite(self, *args: Any, **kwargs: Any) -> Any:
        """Count the models that tests define, too."""
        suite = super().build_suite(*args, **kwargs)
        if apps.is_installed(__package__):
            from . import counted

            with mock.patch.object(apps, "ready", False):
                counted.install()
        return suite

    def get_resultclass(self) -> type[Result]:
        return Result

    def run_suite(self, suite: Any, **kwargs: Any) -> Any:
        result = super().run_suite(suite, **kwargs)
        failed = [(test.id(), error) for test, error in result.failures + result.errors]
        failed += [(test.id(), "unexpected success") for test in result.unexpectedSuccesses]
        report(tests=result.testsRun - len(result.skipped), failed=failed)
        return result
