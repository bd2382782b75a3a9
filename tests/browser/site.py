"""`python -m tests.browser.site` runs the demo site, on which nothing happens by itself, until its input ends."""

import sys
from datetime import timedelta

import django


def main() -> None:
    django.setup()
    from django.contrib.auth import get_user_model
    from django.utils import timezone

    from demo_project import life
    from demo_project.site import running_site
    from notifications_counter.counters import unread
    from notifications_counter.models import Notification

    with running_site(users=5) as site:
        admin = get_user_model().objects.create_superuser("admin", password="admin")
        reader = get_user_model().objects.create_user("xiaoming", password="demo")
        life.settle([admin, *site.users])
        busy = site.users[4]
        Notification.objects.bulk_create(life.notification(busy, n) for n in range(120))
        for n in range(300):
            life.go_on([busy], [])
            if n % 20 == 0:
                unread.flush()
        Notification.objects.bulk_create(
            Notification(user=reader, kind=kind, title=title, body=body) for kind, title, body in IN_CHINESE
        )
        for (_kind, _title, _body, age), (_art, title, _text) in zip(life.NOTIFICATIONS, IN_CHINESE, strict=True):
            Notification.objects.filter(title=title).update(created_at=timezone.now() - timedelta(seconds=age))
        Notification.objects.filter(user=reader, kind="").mark_as_read()
        wordy = get_user_model().objects.create_user("maximiliane.featherstonehaugh@example.com")
        Notification.objects.create(user=wordy, kind="subscription.cancelled", title="A title of many words. " * 11)
        unread.flush()
        print(site.url, flush=True)
        sys.stdin.read()


IN_CHINESE = [
    ("comment", "安娜评论了您的草稿", "“第二张图的坐标轴缺少单位。”"),
    ("comment", "小波回复了您", "“同意。会议已改到周四下午两点半。”"),
    ("order", "订单 7041 已发货", "预计两天内送达。"),
    ("order", "已收到付款", "谢谢。您可以在账户中查看收据。"),
    ("security", "新登录提醒", "来自 Linux 上的 Firefox。如果不是您本人，请修改密码。"),
    ("", "导出已完成", "文件将保留七天。"),
    ("", "欢迎", "本站只用一次 Redis GET，就能显示准确的未读数。"),
]

if __name__ == "__main__":
    main()
