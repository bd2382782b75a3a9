-- Reads the state of a counter at one moment.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  aside (hash)
-- ARGV  1 '1' to delete first what something else has written there, with another type; then everyone is in doubt
-- Reply the texts, the flags, which are set if they are not nil, and the numbers of BufferStatus
if ARGV[1] == '1' then
  local types = {[pending] = 'zset', [flushing] = 'zset', [ready] = 'string'}
  for _, hash in ipairs({state, intents, in_flight, aside}) do types[hash] = 'hash' end
  for key, right in pairs(types) do
    local found = redis.call('TYPE', key).ok
    if found ~= right and found ~= 'none' then redis.call('UNLINK', key, ready) end
  end
end
local about = redis.call('HMGET', state, 'server', 'batch', 'finished', 'failure', 'cut_at', 'ran_at')
local waiting, cut = redis.call('ZCARD', pending), redis.call('ZCARD', flushing)
return {
  {redis.call('GET', ready), unpack(about, 1, 4)},
  {redis.call('ZSCORE', pending, SENTINEL), redis.call('ZSCORE', flushing, SENTINEL)},
  {about[5], about[6], redis.call('TIME')[1], math.max(0, waiting - 1), math.max(0, cut - 1),
    redis.call('HLEN', intents), redis.call('HLEN', aside)},
}
