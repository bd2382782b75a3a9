-- Puts owners in doubt: readers count their rows.
-- USES  pending (zset)  state (hash)  ready (text)  listeners (text)
-- ARGV  the owners
-- Publishes the owners for open streams.
for _, owner in ipairs(ARGV) do doubt(owner) end
note_pending()
tell_listeners(ARGV)
