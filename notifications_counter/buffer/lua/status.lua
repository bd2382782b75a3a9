-- The state of a shard at one moment.
-- KEYS  1 state (hash)  2 ready (integer)  3 pending (zset)  4 flushing (zset)  5 open (hash)  6 dirty (zset)
--       7 rejected (hash)
-- Reply epoch, last epoch whose recovery was complete, server at the last recovery, run_id now, ready, batch, waiting
--       since, flushing since, dirty since ('' where missing), time now, then the sizes of pending, flushing, open,
--       dirty, rejected
local about = redis.call('HMGET', KEYS[1], 'epoch', 'completed', 'server', 'batch', 'waiting_since', 'flushing_since')
return {
  about[1] or '', about[2] or '', about[3] or '', redis.call('INFO', 'server'):match('run_id:(%w+)'),
  redis.call('GET', KEYS[2]) or '', about[4] or '', about[5] or '', about[6] or '',
  redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')[2] or '',
  redis.call('TIME')[1],
  redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4]), redis.call('HLEN', KEYS[5]),
  redis.call('ZCARD', KEYS[6]), redis.call('HLEN', KEYS[7]),
}
