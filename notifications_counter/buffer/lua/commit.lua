-- Takes parts out of open and adds their deltas, once: a part that is gone, was begun under another recovery, or had
-- begun before a correction of the user, sends its users to a recount instead.
-- KEYS  1 open (hash)  2 ready (integer)  3 state (hash)  4 pending (zset)  5 fences (zset)  6 dirty (zset)
-- ARGV  1 base of the shard's keys, then for each part: id, number of pairs, and the pairs user, delta ('?': unknown)
-- Reply the number of users sent to a recount; processes with open streams are told of all
local open, ready_key, state, pending, fences, dirty = unpack(KEYS)
local base = ARGV[1]
local ready = redis.call('GET', ready_key)
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local totals = ready and base .. ':total:' .. ready .. ':'
local till = redis.call('HMGET', state, 'leased_until', 'live_until')
local leases = tonumber(till[1] or 0) >= now_ms
local live = tonumber(till[2] or 0) >= tonumber(time[1]) and {}
local fenced = redis.call('EXISTS', fences) == 1
local added, sent = false, 0

local function mark(user)
  redis.call('DEL', base .. ':lease:' .. user)
  if ready then redis.call('DEL', totals .. user) end
  redis.call('ZADD', dirty, 'NX', time[1], user)
  sent = sent + 1
end

local i = 2
while i <= #ARGV do
  local entry = redis.call('HGET', open, ARGV[i])
  redis.call('HDEL', open, ARGV[i])
  local seq
  if entry then
    local part = cjson.decode(entry)
    if ready and part.ready == ready then seq = part.seq end
  end
  local last = i + 1 + 2 * tonumber(ARGV[i + 1])
  for j = i + 2, last, 2 do
    local user, delta = ARGV[j], ARGV[j + 1]
    if live then live[#live + 1] = user end
    local fence = fenced and redis.call('ZSCORE', fences, user)
    if not seq or delta == '?' or (fence and tonumber(fence) >= seq) then
      mark(user)
    else
      redis.call('ZINCRBY', pending, delta, user)
      if redis.call('EXISTS', totals .. user) == 1 then redis.call('INCRBY', totals .. user, delta) end
      if leases then redis.call('DEL', base .. ':lease:' .. user) end
      added = true
    end
  end
  i = last + 1
end
if added then redis.call('HSETNX', state, 'waiting_since', time[1]) end
if fenced and redis.call('EXISTS', open) == 0 then redis.call('UNLINK', fences) end
if live and #live > 0 then redis.pcall('PUBLISH', base .. ':live', cjson.encode(live)) end
return sent
