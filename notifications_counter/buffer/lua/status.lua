-- Reads the state of a shard at one moment.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  dirty (zset)  rejected (hash)
--       database (text)
-- Reply epoch, declaration in force, when a process with another one was last heard of, server at the last recovery,
--       ready, batch, mark of the last finished batch, dirty users as counted, waiting since, flushing since, dirty since
--       ('' where missing), time now, then the sizes of pending, flushing, intents, dirty, rejected, and 1 if Redis
--       knows which database came last, 1 if something else has written a text to state in place of a number
if redis.call('GET', ready) == 'left' then return LEFT end
local about = redis.call('HMGET', state, 'epoch', 'declared', 'foreign_at', 'server', 'batch', 'mark', 'dirty',
  'waiting_since', 'flushing_since')
local unreadable = 0
for i, number in ipairs(redis.call('HMGET', state, 'epoch', 'batch', 'dirty', 'waiting_since', 'flushing_since',
  'foreign_at', 'live_until')) do
  if number and not (number:match('^-?%d+$') and #number <= (i == 1 and 7 or 16)) then unreadable = 1 end
end
return {
  about[1] or '', about[2] or '', about[3] or '', about[4] or '', redis.call('GET', ready) or '', about[5] or '',
  about[6] or '', about[7] or '', about[8] or '', about[9] or '',
  redis.call('ZRANGE', dirty, 0, 0, 'WITHSCORES')[2] or '',
  redis.call('TIME')[1],
  redis.call('ZCARD', pending), redis.call('ZCARD', flushing), redis.call('HLEN', intents),
  redis.call('ZCARD', dirty), redis.call('HLEN', rejected), redis.call('EXISTS', database), unreadable,
}
