import math

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand

from demo_project import traffic
from demo_project.stage import require_extra, stage
from notifications_counter.models import Notification

USERS = 30
NOTIFICATIONS = [
    ("Welcome", "This site shows an exact badge for the price of one Redis GET."),
    ("Your export is ready", "The file stays for seven days."),
    ("Anna commented on your draft", "“The second chart needs a unit on its axis.”"),
    ("Payment received", "Thank you. The receipt is in your account."),
    ("New sign-in", "From Firefox on Linux, a minute ago."),
]


class Command(BaseCommand):
    help = (
        "Runs the demo site until Ctrl-C, with a flusher beside it, a fresh database, and the "
        "Redis of REDIS_URL or one of its own."
    )
    requires_system_checks = []  # the Redis that they would ask does not run yet

    def add_arguments(self, parser):
        parser.add_argument("--port", type=int, default=8000, help="default: 8000; the next free one if taken")

    def handle(self, *, port, **options):
        require_extra()
        self.stdout.write("Starting the site; what its processes say appears here too.")
        try:
            with stage(users=USERS, port=port, quiet=False) as site:
                admin = get_user_model().objects.create_superuser("admin", password="admin")
                Notification.objects.bulk_create(
                    Notification(user=user, title=title, body=body)
                    for user in [admin, *site.users]
                    for title, body in NOTIFICATIONS
                )
                self.stdout.write(
                    f"{site.url}\n"
                    f"  admin / admin, or {traffic.username(0)} … {traffic.username(USERS - 1)} / "
                    f"{traffic.PASSWORD}\n"
                    "Ctrl-C ends it."
                )
                site.wait_until(lambda: False, math.inf)
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
