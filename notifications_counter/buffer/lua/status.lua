-- Reads the state of a counter at one moment.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)
-- Reply the texts and the numbers of BufferStatus
local about = redis.call('HMGET', state, 'server', 'batch', 'mark', 'failure', 'cut_at', 'ran_at')
return {
  {redis.call('GET', ready), unpack(about, 1, 4)},
  {about[5], about[6], redis.call('TIME')[1], redis.call('ZCARD', pending), redis.call('ZCARD', flushing),
    redis.call('HLEN', intents)},
}
