-- Code that several scripts share, in parts that blank lines separate. Each script is sent behind the parts that it
-- uses.

-- The beginning of all keys of the script
local base = KEYS[1]:match('(.*):')

-- Returns the key of an owner's cached total, given the value of ready. Totals that were cached during a recovery
-- are still found after it.
local function total_of(owner, ready_now) return base .. ':total:' .. (ready_now or ''):match('%d*') .. ':' .. owner end

-- Returns whether a number, also as text, is an integer that was not rounded: Lua and sorted sets use doubles.
local function is_exact(number) return math.abs(tonumber(number)) < 2 ^ 53 end

-- Returns the cached total at a key, without the mark of an owner in flight: 12 or 12!. If something else wrote it, it
-- is deleted, and counts as missing.
local function total_at(key)
  local cached = redis.pcall('GET', key)
  local total = type(cached) == 'string' and cached:match('^(-?%d+)!?$')
  if total and is_exact(total) then return total end
  if cached then redis.call('DEL', key) end
end

-- Returns whether a recovery is under way, given the value of ready.
local function is_recovering(ready_now) return ready_now and ready_now:sub(-1) == '?' end

-- Notes a heartbeat of a process with this declaration. If another one is in force, readers count rows, and no epoch
-- begins until there has been no such heartbeat for a while.
-- declared: of the current epoch  awaited: of the next one, if it is in force already
local function heartbeat(fingerprint, declared, awaited)
  local in_force = awaited or declared
  if in_force and in_force ~= fingerprint then
    redis.call('HSET', state, 'heartbeat_at', redis.call('TIME')[1])
    redis.call('DEL', ready)
  end
end

-- Returns whether the keys are out of use, given the value of ready: left as those of another database, see
-- enter.lua, or retired after a change of SHARDS, see retire.lua.
local function is_out_of_use(ready_now) return ready_now == 'left' or ready_now == 'retired' end

-- The reply of a script if its keys are out of use, or Redis is behind the database.
local LEFT = redis.error_reply('LEFT The database does not use these keys any more')

-- Returns whether Redis is in an earlier epoch than the one that the database knows.
local function is_behind(known)
  return (tonumber(redis.call('HGET', state, 'epoch')) or 0) < tonumber(known)
end

-- Runs INCRBY or HINCRBY. Returns nothing if it cannot add to what is there, because something else wrote it.
local function add(...)
  local sum = redis.pcall(...)
  if type(sum) ~= 'table' then return sum end
  if not (sum.err:find('integer') or sum.err:find('overflow') or sum.err:find('WRONGTYPE')) then error(sum.err, 0) end
end

-- Returns a lease as leases holds it: its token, and when it was taken.
local function lease(token, now) return token .. '@' .. now end

-- Returns whether a lease has this token.
local function is_held(held, token) return held and held:match('(.*)@') == token end

-- Returns whether a lease may be taken: nobody has it, or it is so many seconds old.
local function is_free(held, now, seconds)
  local age = held and now - (held:match('@(%d+)$') or 0)
  return not age or age < 0 or age >= tonumber(seconds) -- below 0: the clock was set back
end

-- Marks an owner as dirty, and returns whether it was not dirty yet. Readers count its rows until a recount; a
-- correction under way is void. If something else has written a text to state, the number of dirty owners stays wrong
-- until the recovery that this causes.
local function mark_dirty(owner, ready_now, now)
  -- rule: lease
  redis.call('HDEL', leases, owner)
  -- rule: dirty_counts
  redis.call('DEL', total_of(owner, ready_now))
  -- rule: doubted
  local is_new = redis.call('ZADD', dirty, 'NX', now, owner) == 1
  if is_new then add('HINCRBY', state, 'dirty', 1) end
  return is_new
end

-- Publishes owners whose counts have changed for processes with open streams.
local function tell_listeners(owners, now, live_until)
  if #owners > 0 and (tonumber(live_until) or 0) >= tonumber(now) then
    redis.pcall('PUBLISH', base .. ':live', cjson.encode(owners))
  end
end

-- Puts an owner of an intent in flight: readers don't use its cached total.
local function take_off(owner, ready_now)
  local key = total_of(owner, ready_now)
  local total = total_at(key)
  -- rule: marked
  if total then redis.call('SET', key, total .. '!', 'KEEPTTL') end
  -- rule: flying
  redis.call('HINCRBY', in_flight, owner, 1)
end

-- Returns a list that is true where an owner is in flight. Without any intent, nobody is.
local function which_fly(owners)
  -- rule: intents
  return #owners > 0 and redis.call('EXISTS', intents) == 1 and redis.call('HMGET', in_flight, unpack(owners)) or {}
end

-- Takes an owner of an intent out of flight. Returns how many other intents name the owner; nothing if Redis has lost
-- that it was in flight.
local function land(owner)
  local others = add('HINCRBY', in_flight, owner, -1) or -1
  if others <= 0 then redis.call('HDEL', in_flight, owner) end
  if others >= 0 then return others end
end

-- Returns the intent in an entry of intents; nothing if something else wrote it.
local function intent_of(entry)
  local is_json, intent = pcall(cjson.decode, entry)
  if not is_json or type(intent) ~= 'table' or type(intent.owners) ~= 'table' then return end
  for _, owner in ipairs(intent.owners) do
    if type(owner) ~= 'string' then return end
  end
  return intent
end

-- Returns the key of an event, given the log's base and a member of a set; nothing if something else wrote the member.
local function event_of(log, member)
  local id = tonumber(member)
  return id and log .. ':event:' .. string.format('%.0f', id)
end

-- Returns the rank of the event that follows another one, even a trimmed one, in the order of ZRANK or ZREVRANK.
local function rank_after(command, score, member)
  redis.call('ZREM', events, '') -- removes nothing, but after such a write, Redis allows others even without memory
  local trimmed = redis.call('ZADD', events, 'NX', score, member) == 1
  local rank = redis.call(command, events, member)
  if not trimmed then return rank + 1 end
  redis.call('ZREM', events, member)
  return rank
end
