-- Lists a page of the counters that are known and hold something.
-- KEYS  known (zset)
-- ARGV  1 first member, 2 last member, as ZRANGEBYLEX takes them  3 most members to look at
-- Reply the last member looked at ('' if none), then the members that hold something
local page = redis.call('ZRANGEBYLEX', known, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local found = {page[#page] or ''}
for _, member in ipairs(page) do
  if redis.call('EXISTS', base .. ':' .. member) == 1 then found[#found + 1] = member end
end
return found
