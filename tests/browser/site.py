"""`python -m tests.browser.site` runs the demo site, on which nothing happens by itself, until its input ends."""

import sys

import django


def main() -> None:
    django.setup()
    from django.contrib.auth import get_user_model

    from demo_project import life
    from demo_project.stage import stage
    from notifications_counter.counters import unread
    from notifications_counter.models import Notification

    with stage(users=5) as site:
        admin = get_user_model().objects.create_superuser("admin", password="admin")
        reader = get_user_model().objects.create_user("xiaoming", password="demo")
        life.settle([admin, *site.users])
        for _ in range(12):
            Notification.objects.bulk_create(life.notification(user, n) for user in site.users[2:] for n in range(9))
            unread.flush()
        Notification.objects.bulk_create(
            Notification(user=reader, kind=kind, title=title, body=body) for kind, title, body in IN_CHINESE
        )
        Notification.objects.filter(user=reader, kind="").mark_as_read()
        print(site.url, flush=True)
        sys.stdin.read()


IN_CHINESE = [
    ("", "欢迎", "本站只用一次 Redis GET，就能显示准确的未读数。"),
    ("", "导出已完成", "文件将保留七天。"),
    ("security", "新的登录", "一分钟前，来自 Linux 上的 Firefox。如果不是您本人，请修改密码。"),
    ("order", "已收到付款", "谢谢。收据已放入您的账户。"),
    ("order", "订单 7041 已发货", "预计两天内送达。"),
    ("comment", "小波回复了您", "“同意。会议已改到周四下午两点半。”"),
    ("comment", "安娜评论了您的草稿", "“第二张图的坐标轴缺少单位。”"),
]

if __name__ == "__main__":
    main()
