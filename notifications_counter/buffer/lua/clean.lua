-- Deletes keys of a counter that something else has written with another type. Then everyone is in doubt.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)
-- Reply the time in seconds
local types = {[pending] = 'zset', [flushing] = 'zset', [ready] = 'string'}
for _, hash in ipairs({state, intents, in_flight}) do types[hash] = 'hash' end
for key, right in pairs(types) do
  local found = redis.call('TYPE', key).ok
  if found ~= right and found ~= 'none' then redis.call('UNLINK', key, ready) end
end
return redis.call('TIME')[1]
