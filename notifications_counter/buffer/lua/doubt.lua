-- Puts owners in doubt, or everyone: readers count their rows.
-- KEYS  pending (zset)  state (hash)  ready (text)  listeners (text)
-- ARGV  the owners; none for everyone
-- Publishes the owners for open streams.
local ready_now = redis.call('GET', ready)
for _, owner in ipairs(ARGV) do doubt(owner, ready_now) end
if #ARGV == 0 then doubt_everyone() end
note_pending()
tell_listeners(ARGV)
