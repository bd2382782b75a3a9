-- Counts the events of some types. What is no set of events holds none.
-- KEYS  types (set)
-- ARGV  1 base of the log's keys  2 first timestamp, or '-inf'  3 '(' and the timestamp at which to end, or '+inf'
--       4 … types
-- Reply their counts
local counts = {}
for i = 4, #ARGV do
  local count = redis.pcall('ZCOUNT', ARGV[1] .. ':events:' .. ARGV[i], ARGV[2], ARGV[3])
  counts[i - 3] = tonumber(count) or 0
end
return counts
