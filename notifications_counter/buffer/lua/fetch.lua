-- Reads a slice of the batch under way by rank, if it is still that batch.
-- KEYS  flushing (zset)  state (hash)
-- ARGV  1 batch  2 first rank  3 last rank  4 'joined' for two texts of comma-joined values, else 'list'
-- Reply joined: users, deltas; list: user, delta, user, delta, …; nothing if the batch is another
if redis.call('HGET', state, 'batch') ~= ARGV[1] then return {} end
local slice = redis.call('ZRANGE', flushing, ARGV[2], ARGV[3], 'WITHSCORES')
if ARGV[4] ~= 'joined' or #slice == 0 then return slice end
local users, deltas = {}, {}
for i = 1, #slice, 2 do
  users[#users + 1] = slice[i]
  deltas[#deltas + 1] = slice[i + 1]
end
return {table.concat(users, ','), table.concat(deltas, ',')}
