from django.db import models
from django_tenants.models import DomainMixin, TenantMixin


class Client(TenantMixin):
    """A tenant, whose schema comes and goes with it."""

    name = models.CharField(max_length=50)
    auto_drop_schema = True


class Domain(DomainMixin):
    pass
