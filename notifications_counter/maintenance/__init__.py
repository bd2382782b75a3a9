"""The work of the flusher and of the commands: flush, heal, recount, recover, compare, clean, prune."""
