"""A site with Celery, whose task and settings are those of docs/howto/in-production.md, but tasks run every second, and
none expires, however busy the machine is."""

import os

import django
from celery import Celery

django.setup()  # for what we import from

from tests.docs.test_docs import page, python_blocks, section  # noqa: E402

settings: dict = {}
for block in python_blocks(section(page("howto/in-production.md"), "Celery")):
    exec(block, settings)

app = Celery("site", broker=os.environ["TEST_REDIS_URL"], set_as_current=True)
schedule = settings["CELERY_BEAT_SCHEDULE"]
app.conf.beat_schedule = {name: {**entry, "schedule": 1.0, "options": {}} for name, entry in schedule.items()}
app.conf.broker_transport_options = {"global_keyprefix": os.environ["TEST_KEY_PREFIX"] + ":celery:"}
app.conf.broker_connection_retry_on_startup = True
