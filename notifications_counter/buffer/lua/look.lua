-- Looks at owners at one moment, for a comparison with the rows.
-- USES  pending (zset)  flushing (zset)  state (hash)  ready (text)
-- ARGV  1 owners, as JSON
-- Reply ready, batch and mark ('' where there is none); a list of what is cached of each owner; one of their pending
--       deltas, and one of their flushing ones
local owners, totals = cjson.decode(ARGV[1]), {}
for i, owner in ipairs(owners) do totals[i] = total_of(owner) end
local batch, mark = unpack(redis.call('HMGET', state, 'batch', 'mark'))
return {
  {ready_now or '', batch or '', mark or ''},
  redis.call('MGET', unpack(totals)),
  redis.call('ZMSCORE', pending, unpack(owners)),
  redis.call('ZMSCORE', flushing, unpack(owners)),
}
