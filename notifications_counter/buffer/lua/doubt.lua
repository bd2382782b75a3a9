-- Puts owners in doubt, or everyone: readers count their rows.
-- KEYS  pending (zset)  ready (text)  listeners (text)
-- ARGV  the owners; none for everyone
-- Reply 1, or 0 if these keys were retired; publishes the owners for open streams
local ready_now = redis.pcall('GET', ready)
if type(ready_now) ~= 'string' then ready_now = nil end -- something else has written it, and nobody reads totals
if ready_now == 'retired' then return 0 end
for _, owner in ipairs(ARGV) do doubt(owner, ready_now) end
if #ARGV == 0 then forget() end
tell_listeners(ARGV)
return 1
