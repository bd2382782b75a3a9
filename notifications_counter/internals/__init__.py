"""Every private or undocumented name of other packages that this app uses, each with the reason.

Other modules import such names from here. Calls are small functions; attributes that are read too often for a call, or
are set, are in ``ATTRIBUTES``. ``tests/test_internals.py`` checks what we rely on against the installed versions, and
fails if the app uses a name that is neither here nor in Django's documentation. This package imports nothing else of
ours.
"""

from .django import *  # noqa: F403
from .transactions import *  # noqa: F403
