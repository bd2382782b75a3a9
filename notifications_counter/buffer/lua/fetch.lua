-- Reads some members of the batch under way by rank, if it is still that batch.
-- KEYS  flushing (zset)  state (hash)
-- ARGV  1 batch  2 first rank  3 last rank  4 'joined' for two texts of comma-joined values, else 'list'
-- Reply joined: users, deltas; list: user, delta, user, delta, …; nothing if the batch is another
if redis.call('HGET', state, 'batch') ~= ARGV[1] then return {} end
local page = redis.call('ZRANGE', flushing, ARGV[2], ARGV[3], 'WITHSCORES')
if ARGV[4] ~= 'joined' or #page == 0 then return page end
local users, deltas = {}, {}
for i = 1, #page, 2 do
  users[#users + 1] = page[i]
  deltas[#deltas + 1] = page[i + 1]
end
return {table.concat(users, ','), table.concat(deltas, ',')}
