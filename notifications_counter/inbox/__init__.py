"""What people see: pages, badges, the bell, JSON, live streams."""
