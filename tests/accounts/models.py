"""Users with every kind of primary key; AUTH_USER_MODEL picks one."""

import uuid

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager
from django.db import models


class UserManager(BaseUserManager):
    def create_user(self, username, password=None, **fields):
        user = self.model(username=username, **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, username, password=None, **fields):
        return self.create_user(username, password, is_superuser=True, **fields)


class BaseUser(AbstractBaseUser):
    """Without PermissionsMixin, whose relations only one of three models could have."""

    username = models.CharField(max_length=150, unique=True)
    is_active = models.BooleanField(default=True)
    is_superuser = models.BooleanField(default=False)

    USERNAME_FIELD = "username"

    objects = UserManager()

    class Meta:
        abstract = True

    @property
    def is_staff(self):
        return self.is_superuser

    def has_perm(self, permission, obj=None):
        return self.is_active and self.is_superuser

    def has_module_perms(self, app_label):
        return self.is_active and self.is_superuser


class User(BaseUser):
    pass


class UUIDUser(BaseUser):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


def awkward_key():
    """A key with all that could be mistaken for syntax on its way through Redis and SQL."""
    return f"用户 {{{uuid.uuid4().hex[:12]}}}: 'a', \"b\"\\%"


class StringUser(BaseUser):
    id = models.CharField(primary_key=True, max_length=100, default=awkward_key)
