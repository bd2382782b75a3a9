-- Reads the state of a counter at one moment.
-- USES  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)
-- Reply the texts and the numbers of BufferStatus, each behind its name
-- It sets nothing, but Redis refuses it as any change: if it is full, a replica, or cannot write to its disk.
local refusal = redis.pcall('SET', base .. ':absent', '', 'XX')
local server, batch, mark, failure = unpack(redis.call('HMGET', state, 'server', 'batch', 'mark', 'failure'))
local ran_at, flushing_since, pending_since =
  unpack(redis.call('HMGET', state, 'ran_at', 'flushing_since', 'pending_since'))
return {
  {'ready', ready_now, 'refusal', refusal and refusal.err, 'server', server, 'batch', batch, 'mark', mark,
    'failure', failure},
  {'since', flushing_since or pending_since, 'ran_at', ran_at, 'now', redis.call('TIME')[1],
    'pending', redis.call('ZCARD', pending), 'flushing', redis.call('ZCARD', flushing),
    'intents', redis.call('HLEN', intents)},
}
