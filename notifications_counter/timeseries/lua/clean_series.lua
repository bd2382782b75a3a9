-- Removes old slices from a page of counters of one precision, and counters without any slices from known.
-- KEYS  known (zset)
-- ARGV  1 first member, 2 last member, as ZRANGEBYLEX takes them  3 seconds for which slices are kept
--       4 time in seconds ('': the server's)  5 most work to do, in slices looked at: a
--       counter itself takes as long as 20
-- Reply the last member looked at ('' if none), counters looked at, slices removed, counters removed
local cutoff = (tonumber(ARGV[4]) or tonumber(redis.call('TIME')[1])) - tonumber(ARGV[3])
local known, work = KEYS[1], tonumber(ARGV[5])
local base = known:match('(.*):')
local last, counters, removed, gone = '', 0, 0, 0

for _, member in ipairs(redis.call('ZRANGEBYLEX', known, ARGV[1], ARGV[2], 'LIMIT', 0, math.ceil(work / 20))) do
  if work <= 0 then break end
  local key, old = base .. ':' .. member, {}
  local slices = redis.call('HKEYS', key)
  for _, slice in ipairs(slices) do
    if (tonumber(slice) or 0) <= cutoff then old[#old + 1] = slice end
  end
  for i = 1, #old, 1000 do redis.call('HDEL', key, unpack(old, i, math.min(i + 999, #old))) end
  if #old == #slices then
    redis.call('ZREM', known, member)
    gone = gone + 1
  end
  last, counters, removed, work = member, counters + 1, removed + #old, work - #slices - 20
end
return {last, counters, removed, gone}
