-- Reads a page of events before or after a position, in the order of timestamp and id.
-- KEYS  events (zset: id → timestamp), of all types or of one
-- ARGV  1 base of the log's keys  2 'before' (newest first) or 'after' (oldest first)  3 number of events
--       4 timestamp ('' for the end of the log)  5 id padded as in the set, or '' for any of that timestamp
-- Reply for each event its id, and its fields and values as a flat list. Events with the timestamp itself are 'after' it.
local before, limit, score, member = ARGV[2] == 'before', tonumber(ARGV[3]), ARGV[4], ARGV[5]
local first = 0
if score ~= '' then
  if member == '' then
    first = before and redis.call('ZCOUNT', events, score, '+inf') or redis.call('ZCOUNT', events, '-inf', '(' .. score)
  else
    first = rank_after(before and 'ZREVRANK' or 'ZRANK', score, member)
  end
end
local page = redis.call(before and 'ZREVRANGE' or 'ZRANGE', events, first, first + limit - 1)
local reply = {}
for i, id in ipairs(page) do
  reply[i] = {id, redis.call('HGETALL', ARGV[1] .. ':event:' .. string.format('%.0f', tonumber(id)))}
end
return reply
