-- Reads the state of a counter at one moment.
-- USES  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)
-- Reply the texts and the numbers of BufferStatus
-- It sets nothing, but Redis refuses it as any change: if it is full, a replica, or cannot write to its disk.
local refusal = redis.pcall('SET', base .. ':absent', '', 'XX')
local texts = redis.call('HMGET', state, 'server', 'batch', 'mark', 'failure')
local times = redis.call('HMGET', state, 'ran_at', 'flushing_since', 'pending_since')
return {
  {ready_now, refusal and refusal.err, unpack(texts)},
  {times[2] or times[3], times[1], redis.call('TIME')[1], redis.call('ZCARD', pending), redis.call('ZCARD', flushing),
    redis.call('HLEN', intents)},
}
