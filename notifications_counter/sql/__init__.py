"""The app's own SQL, with which a flush writes and a walk reads."""
