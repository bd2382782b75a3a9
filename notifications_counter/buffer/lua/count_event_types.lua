-- Counts a page of events by reading the type of each.
-- KEYS  events (zset: id → timestamp)
-- ARGV  1 base of the log's keys  2 first timestamp, or '-inf'  3 '(' and the timestamp at which to end, or '+inf'
--       4 number of events  5 timestamp and 6 id of the event after which the page begins, '' at first
-- Reply timestamp and id of the last event of the page ('' at the end), then type as JSON, count, …
local score, member = ARGV[5], ARGV[6]
local earlier = member == '' and redis.call('ZCOUNT', events, '-inf', '(' .. ARGV[2])
local first = earlier or rank_after('ZRANK', score, member)
local size = math.min(tonumber(ARGV[4]), redis.call('ZCOUNT', events, '-inf', ARGV[3]) - first)
local page = size > 0 and redis.call('ZRANGE', events, first, first + size - 1) or {}
local counts = {}
for _, id in ipairs(page) do
  local key = event_of(ARGV[1], id)
  local kind = key and redis.call('HGET', key, 'type')
  if kind then counts[kind] = (counts[kind] or 0) + 1 end
end
local last = page[#page]
local reply = {last and redis.call('ZSCORE', events, last) or '', last or ''}
for kind, count in pairs(counts) do
  reply[#reply + 1] = kind
  reply[#reply + 1] = count
end
return reply
