from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tests.tenants"
    label = "tenants"
