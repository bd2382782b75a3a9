-- Reads the state of a shard at one moment.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  aside (hash)
-- Reply name, value, …: the fields of state and others, as Status has them
local reply = {
  'ready', redis.call('GET', ready) or '',
  'now', redis.call('TIME')[1],
  'pending', math.max(0, redis.call('ZCARD', pending) - 1),
  'flushing', math.max(0, redis.call('ZCARD', flushing) - 1),
  'intents', redis.call('HLEN', intents),
  'aside', redis.call('HLEN', aside),
  'is_whole', redis.call('ZSCORE', pending, SENTINEL) and 1 or 0,
  'has_cut', redis.call('ZSCORE', flushing, SENTINEL) and 1 or 0,
}
local names = {'server', 'batch', 'finished', 'cut_at'}
for i, value in ipairs(redis.call('HMGET', state, unpack(names))) do
  reply[#reply + 1], reply[#reply + 2] = names[i], value or ''
end
return reply
