-- Notes that a process has trouble with Redis, or had an outage.
-- KEYS  outages (hash)
-- ARGV  1 kind of trouble  2 reason  3 milliseconds of an outage that has ended, '' for other trouble
--       4 seconds without trouble after which the next one is new
-- Reply nothing
local now, kind = redis.call('TIME')[1], ARGV[1]
redis.call('HDEL', outages, '') -- no such field; a script whose first write is this also runs without memory
local last = tonumber(redis.call('HGET', outages, kind .. '_at') or 0)
if now - last > tonumber(ARGV[4]) then redis.call('HSET', outages, kind .. '_since', now) end
redis.call('HSET', outages, kind .. '_at', now, kind .. '_reason', ARGV[2])
if ARGV[3] ~= '' then
  redis.call('HINCRBY', outages, 'outages', 1)
  redis.call('HINCRBY', outages, 'outage_ms', ARGV[3])
end
