-- Code that several scripts share. A script that uses a part of this file is put behind that part; blank lines separate
-- the parts.

-- What all keys of the script begin with
local base = KEYS[1]:match('(.*):')

-- epoch: the value of ready. Totals of users who were adopted during a recovery are still found after it.
local function total_of(user, epoch) return base .. ':total:' .. epoch:match('%d*') .. ':' .. user end

-- Returns whether a recovery is under way, given the value of ready.
local function is_recovering(epoch) return epoch and epoch:sub(-1) == '?' end

-- Returns the key of the cached counts of a group, the owners who differ from this one only in the last column, and its
-- last column; nothing if owners have one column. epoch: the value of ready.
local function group_of(user, epoch)
  local first, last = user:match('^(.*\t)(.*)')
  if first then return base .. ':group:' .. epoch:match('%d*') .. ':' .. first, last end
end

-- Notes that a process with this declaration is alive. If another one is in force, readers count rows, and no epoch
-- begins until no such process has been heard of for a while.
-- declared: of the current epoch  awaited: of the next one, if it is in force already
local function hear(fingerprint, declared, awaited)
  local in_force = awaited or declared
  if in_force and in_force ~= fingerprint then
    redis.call('HSET', state, 'foreign_at', redis.call('TIME')[1])
    redis.call('DEL', ready)
  end
end

-- The reply of a script if its keys were left, see enter.lua, or Redis is behind the database.
local LEFT = redis.error_reply('LEFT The database does not use these keys any more')

-- Returns whether Redis is in an earlier epoch than the one that the database knows.
local function is_behind(known)
  return (tonumber(redis.call('HGET', state, 'epoch')) or 0) < tonumber(known)
end

-- Runs INCRBY or HINCRBY. Returns nothing if it cannot add, because something else wrote what is there.
local function add(...)
  local sum = redis.pcall(...)
  if type(sum) ~= 'table' then return sum end
  if not (sum.err:find('integer') or sum.err:find('overflow') or sum.err:find('WRONGTYPE')) then error(sum.err, 0) end
end

-- Sends a user to a recount. Until then readers count rows; a correction under way is void. If something else has written
-- a text to state, the number of dirty users stays wrong until the recovery for which that is a reason.
local function mark_dirty(user, epoch, now)
  redis.call('HDEL', leases, user)
  local group = epoch and group_of(user, epoch)
  if epoch then redis.call('DEL', total_of(user, epoch)) end
  if group then redis.call('UNLINK', group) end
  if redis.call('ZADD', dirty, 'NX', now, user) == 1 then add('HINCRBY', state, 'dirty', 1) end
end

-- Tells processes with open streams whose counters have changed.
local function tell_listeners(users, now, live_until)
  if #users > 0 and (tonumber(live_until) or 0) >= tonumber(now) then
    redis.pcall('PUBLISH', base .. ':live', cjson.encode(users))
  end
end

-- Returns a part as open holds it; nothing if something else wrote it.
local function part_of(entry)
  local is_json, part = pcall(cjson.decode, entry)
  if is_json and type(part) == 'table' and type(part.seq) == 'number' then return part end
end

-- Returns the key of an event, given its base and member of the set; nothing if something else wrote the member.
local function event_of(log, member)
  local id = tonumber(member)
  return id and log .. ':event:' .. string.format('%.0f', id)
end

-- Returns the rank of what follows an event, in the order of ZRANK or ZREVRANK. A trimmed event still has its place.
local function rank_after(command, score, member)
  local trimmed = redis.call('ZADD', events, 'NX', score, member) == 1
  local rank = redis.call(command, events, member)
  if not trimmed then return rank + 1 end
  redis.call('ZREM', events, member)
  return rank
end
