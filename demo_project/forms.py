import re

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm
from django.utils.translation import gettext_lazy as _

from notifications_counter.models import Notification

from .life import KINDS


class LoginForm(AuthenticationForm):
    """The error, which does not tell what is wrong, describes both fields: screen readers read it with the first."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["aria-describedby"] = "error"


class SendForm(forms.ModelForm):
    """A notification for each recipient. `cleaned_data["to"]` is a list of their primary keys."""

    to = forms.CharField(
        label=_("To"),
        required=False,
        help_text=_("Usernames, separated by commas. Staff can leave this empty to send to everybody."),
        widget=forms.TextInput(attrs={"autofocus": True, "autocapitalize": "none"}),
    )

    class Meta:
        model = Notification
        fields = ["to", "kind", "title", "body"]
        widgets = {"kind": forms.Select(choices=[("", "—"), *KINDS]), "body": forms.Textarea(attrs={"rows": 4})}

    def __init__(self, *args, sender, **kwargs):
        super().__init__(*args, label_suffix="", **kwargs)
        self.sender = sender

    def clean_to(self) -> list:
        users = get_user_model().objects.filter(is_active=True)
        names = set(re.split(r"[,，、\s]+", self.cleaned_data["to"])) - {""}
        if not names:
            if not self.sender.is_staff:
                raise forms.ValidationError(_("Only staff can send to everybody."))
            return list(users.values_list("pk", flat=True))
        found = dict(users.filter(username__in=names).values_list("username", "pk"))
        if unknown := sorted(names - found.keys()):
            raise forms.ValidationError(_("No such user: %(names)s."), params={"names": ", ".join(unknown)})
        return list(found.values())
