-- Removes the oldest events, some at a time: those above an age, and those beyond a number.
-- KEYS  events (zset: id → timestamp)  types (set)
-- ARGV  1 highest age in seconds ('' for any)  2 number to keep ('' for all)
--       3 present time ('' for the clock of Redis)  4 how many to remove at most
-- Reply the number of events removed
local events, types, aged = base .. ':events', base .. ':types', 0
if ARGV[1] ~= '' then
  local time = redis.call('TIME')
  local now = tonumber(ARGV[3]) or time[1] + time[2] / 1e6
  aged = redis.call('ZCOUNT', events, '-inf', string.format('(%.17g', now - ARGV[1]))
end
local beyond = ARGV[2] ~= '' and redis.call('ZCARD', events) - tonumber(ARGV[2]) or 0
local size = math.min(math.max(aged, beyond), tonumber(ARGV[4]))
if size <= 0 then return 0 end
for _, id in ipairs(redis.call('ZRANGE', events, 0, size - 1)) do
  local key = event_of(id)
  local kind = redis.call('HGET', key, 'type')
  if kind then
    local of_type = events .. ':' .. cjson.decode(kind)
    redis.call('ZREM', of_type, id)
    if redis.call('EXISTS', of_type) == 0 then redis.call('SREM', types, cjson.decode(kind)) end
  end
  redis.call('DEL', key)
  redis.call('ZREM', events, id)
end
return size
