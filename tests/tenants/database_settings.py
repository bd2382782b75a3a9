"""A site with a database for each tenant, which a router names."""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

name = DATABASES["default"]["TEST"]["NAME"]
DATABASES |= {
    alias: {**DATABASES["default"], "NAME": f"{name}_{alias}", "TEST": {"NAME": f"{name}_{alias}"}}
    for alias in ("default", "blue", "green")
}
DATABASE_ROUTERS = ["tests.tenants.router.TenantRouter"]
