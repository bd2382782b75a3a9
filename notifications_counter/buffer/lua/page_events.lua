-- Reads a page of events before or after a position, in the order of timestamp and id.
-- KEYS  events (zset: id → timestamp), of all types or of one
-- ARGV  1 base of the log's keys  2 'before' (newest first) or 'after' (oldest first)  3 number of events
--       4 timestamp ('' for the end of the log)  5 id padded as in the set, or '' for any of that timestamp
-- Reply for each event its id, its timestamp, and its fields and values as a flat list, empty if they are gone. Events
--       with the timestamp itself are 'after' it.
local events, before, limit, score, member = KEYS[1], ARGV[2] == 'before', tonumber(ARGV[3]), ARGV[4], ARGV[5]
local first = 0
if member ~= '' then -- the rank behind that of an event, even of a trimmed one
  redis.call('ZREM', events, '') -- removes nothing: see run_without_memory()
  local trimmed = redis.call('ZADD', events, 'NX', score, member) == 1
  first = redis.call(before and 'ZREVRANK' or 'ZRANK', events, member)
  if trimmed then redis.call('ZREM', events, member) else first = first + 1 end
elseif score ~= '' then
  first = before and redis.call('ZCOUNT', events, score, '+inf') or redis.call('ZCOUNT', events, '-inf', '(' .. score)
end
local page = redis.call(before and 'ZREVRANGE' or 'ZRANGE', events, first, first + limit - 1, 'WITHSCORES')
local reply = {}
for i = 1, #page, 2 do
  reply[#reply + 1] = {page[i], page[i + 1], redis.call('HGETALL', event_of(ARGV[1], page[i]))}
end
return reply
