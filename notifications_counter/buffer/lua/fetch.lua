-- Reads owners of a batch by rank, while it is under way.
-- KEYS  flushing (zset)  state (hash)
-- ARGV  1 batch  2 first rank  3 last rank  4 separator, or '' for none
-- Reply two texts, of owners and of deltas, joined by the separator; without one: owner, delta, owner, delta, …;
--       nothing if another batch is under way
-- rule: fetch_batch
if redis.call('HGET', state, 'batch') ~= ARGV[1] then return {} end
local page = redis.call('ZRANGE', flushing, ARGV[2], ARGV[3], 'WITHSCORES')
if ARGV[4] == '' or #page == 0 then return page end
local owners, deltas = {}, {}
for i = 1, #page, 2 do
  owners[#owners + 1] = page[i]
  deltas[#deltas + 1] = page[i + 1]
end
return {table.concat(owners, ARGV[4]), table.concat(deltas, ARGV[4])}
