-- Puts owners in doubt, or everyone: readers count their rows.
-- USES  pending (zset)  state (hash)  ready (text)  listeners (text)
-- ARGV  the owners; none for everyone
-- Publishes the owners for open streams.
for _, owner in ipairs(ARGV) do doubt(owner) end
if #ARGV == 0 then doubt_everyone() end
note_pending()
tell_listeners(ARGV)
