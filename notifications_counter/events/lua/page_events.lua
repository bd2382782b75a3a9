-- Reads a page of events before or after a position, in the order of timestamp and id.
-- KEYS  events (zset: id → timestamp)
-- ARGV  1 'events', or 'events:' and a type  2 'before' (newest first) or 'after' (oldest first)  3 number of events
--       4 timestamp ('' for the end of the log)  5 id padded as in the set; '' or a trimmed one for any at that time
-- Reply for each event its id, its timestamp, and its fields and values as a flat list, empty if they are gone. Events
--       with the timestamp itself are 'after' it.
local events, before = base .. ':' .. ARGV[1], ARGV[2] == 'before'
local limit, score, member = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local first, rank = 0, redis.call(before and 'ZREVRANK' or 'ZRANK', events, member)
if rank then
  first = rank + 1
elseif score ~= '' then -- a trimmed event was the first of its time
  first = before and redis.call('ZCOUNT', events, score, '+inf') or redis.call('ZCOUNT', events, '-inf', '(' .. score)
end
local page = redis.call(before and 'ZREVRANGE' or 'ZRANGE', events, first, first + limit - 1, 'WITHSCORES')
local reply = {}
for i = 1, #page, 2 do
  reply[#reply + 1] = {page[i], page[i + 1], redis.call('HGETALL', event_of(page[i]))}
end
return reply
