-- Gives events the next ids and stores them, all at once.
-- KEYS  next (integer)  events (zset: id → timestamp)  types (set)
-- ARGV  for each event: type, timestamp ('' for now), number of fields, and the pairs field, value as JSON
-- Reply the ids
local next, events, types = base .. ':next', base .. ':events', base .. ':types'
local i, reply, time = 1, {}, redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', tonumber(time[2]))
while i <= #ARGV do
  local kind, timestamp = ARGV[i], ARGV[i + 1]
  local last = i + 2 + 2 * tonumber(ARGV[i + 2])
  local id = redis.call('INCR', next)
  local key = event_of(id)
  if timestamp == '' then
    timestamp = now
    redis.call('HSET', key, 'timestamp', now)
  end
  for j = i + 3, last, 2 do redis.call('HSET', key, ARGV[j], ARGV[j + 1]) end
  local member = string.format('%016.0f', id)
  redis.call('ZADD', events, timestamp, member)
  redis.call('ZADD', events .. ':' .. kind, timestamp, member)
  redis.call('SADD', types, kind)
  reply[#reply + 1] = id
  i = last + 1 -- or Redis would be busy for ever
end
return reply
