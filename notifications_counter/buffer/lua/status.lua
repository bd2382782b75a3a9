-- Reads the state of a counter at one moment.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)
-- Reply the texts, the flags, which are set if they are not nil, and the numbers of BufferStatus
local about = redis.call('HMGET', state, 'server', 'batch', 'finished', 'failure', 'cut_at', 'ran_at')
local waiting, cut = redis.call('ZCARD', pending), redis.call('ZCARD', flushing)
return {
  {redis.call('GET', ready), unpack(about, 1, 4)},
  {redis.call('ZSCORE', pending, SENTINEL), redis.call('ZSCORE', flushing, SENTINEL)},
  {about[5], about[6], redis.call('TIME')[1], math.max(0, waiting - 1), math.max(0, cut - 1),
    redis.call('HLEN', intents)},
}
