"""The work of the flusher and of the commands: flush, heal, recount, recover, verify, clean, prune."""
