"""Checks of the settings: the entries of NOTIFICATIONS_COUNTER, the cache, the databases, and the order of apps."""

from __future__ import annotations

from difflib import get_close_matches

import django
from django.apps import AppConfig
from django.conf import settings
from django.core.checks import register
from django.db import connections

from ..caches import TIMEOUTS, SiteCache
from ..conf import SETTING, mistakes, options
from ..internals import NEWEST_DJANGO
from ..upkeep.distrust import why_unhooked
from ..writes.hook import missing
from .counters import sound_counters
from .messages import TAG, Messages, error, warning

MAX_TIMEOUT_SECONDS = 1.0
"""Seconds."""


@register(TAG)
def check_settings(**_: object) -> Messages:
    """Check the entries of NOTIFICATIONS_COUNTER."""
    if not hasattr(settings, SETTING):
        for name in get_close_matches(SETTING, dir(settings), n=1, cutoff=0.9):
            yield error("E001", f"The setting {name} is unknown.", f"Did you mean {SETTING}?")
    for name in dir(settings):
        if name.startswith(f"{SETTING}_"):
            yield error("E001", f"The setting {name} is unknown.", f"Write it as an entry of {SETTING}.")
    for fact, hint in mistakes(getattr(settings, SETTING, {})):
        yield error("E001", fact, hint)


@register(TAG)
def check_django(**_: object) -> Messages:
    """Check that this Django was tested, because the counters use private names of it: W008, which a site may silence.
    W009 says that they don't count, because it lacks the methods that they wrap, or the site wants it so."""
    if django.VERSION[:2] > NEWEST_DJANGO:
        yield warning(
            "W008",
            f"The counters were not tested with Django {django.get_version()}, only up to "
            f"{'.'.join(map(str, NEWEST_DJANGO))}.",
            "Upgrade django-notifications-counter. If there is no release for it yet, run your tests with "
            "`manage.py recount_counters --dry-run` at their end, and silence this check.",
        )
    if reason := why_unhooked():
        undo = "Remove that entry"
        if options.ENABLED:
            undo = "Upgrade django-notifications-counter, or go back to the Django before"
        fact = f"Counting is off, and reads count rows: {reason}."
        yield warning("W009", fact, f"{undo}, restart all processes, then run `manage.py counting on`.")


# ------------------------------------------------------------------------ cache
@register(TAG)
def check_cache(**_: object) -> Messages:
    """Check that the counters can use their cache."""
    if problem := SiteCache(options.CACHE_ALIAS).problem:
        yield error("E002", *problem)


@register(TAG, deploy=True)
def check_cache_in_production(**_: object) -> Messages:
    """Check that a page does not wait for a Redis that does not answer, and that nobody else clears the cache."""
    alias = options.CACHE_ALIAS
    cache = SiteCache(alias)
    if cache.problem:
        return
    for name in TIMEOUTS:
        if not all(0 < seconds <= MAX_TIMEOUT_SECONDS for seconds in cache.timeouts(name)):
            yield warning(
                "W002",
                f"The cache {alias!r} has no {name}, or one of more than a second. That is how long a page waits for a "
                "Redis that does not answer.",
                f"Set CACHES[{alias!r}]['OPTIONS'][{name!r}] to 0.1, in a cache that only the counters use.",
            )
    if alias == "default":
        yield warning(
            "W003",
            "The counters use the default cache.",
            "If it is cleared, everyone's rows are counted again. Add one to CACHES whose LOCATION ends with the "
            f"number of an unused Redis database, and set {SETTING}['CACHE_ALIAS'] to its name.",
        )


# -------------------------------------------------------------------- databases
@register(TAG)
def check_databases(**_: object) -> Messages:
    """Check that SQLite suits more than one process."""
    for alias in dict.fromkeys(counter.db for counter in sound_counters()):
        connection = connections[alias]
        if hasattr(connection, "is_in_memory_db") and not connection.is_in_memory_db():
            mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or "DEFERRED"
            if mode.upper() == "DEFERRED":
                yield warning(
                    "W001",
                    f"The SQLite database {alias!r} uses deferred transactions.",
                    "A transaction that reads before it writes fails with 'database is locked' if another process "
                    f"is writing. Set DATABASES[{alias!r}]['OPTIONS']['transaction_mode'] to 'IMMEDIATE'.",
                )


@register(TAG)
def check_tenants(**_: object) -> Messages:
    """Check that the app's tables are in the schemas of the counted rows, with django-tenants."""
    of_tenants, of_all = (
        {AppConfig.create(name).label for name in getattr(settings, setting, ())}
        for setting in ("TENANT_APPS", "SHARED_APPS")
    )
    if "notifications_counter" in of_tenants or not of_tenants:
        return
    for counter in sound_counters():
        for model in {counter.source, counter.totals}:
            if model._meta.app_label in of_tenants - of_all:
                yield error(
                    "E008",
                    f"Counter {counter.name!r} counts the tenants' rows, but the app's own tables are shared, so the "
                    "counts of different tenants would be mixed up.",
                    "Add 'notifications_counter' to TENANT_APPS.",
                    obj=model,
                )


@register(TAG)
def check_hook(**_: object) -> Messages:
    """Check that the app sees every statement that writes."""
    for method in [] if why_unhooked() else missing():
        yield error(
            "E006",
            f"The counters do not see the statements that {method}() executes.",
            "Another app has replaced this method of Django after the counters wrapped it. List that app before "
            "'notifications_counter' in INSTALLED_APPS, or make it call the method that it replaces.",
        )
