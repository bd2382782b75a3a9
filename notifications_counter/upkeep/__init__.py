"""The work of the flusher and of the commands: heal, walk, flush, clean."""
