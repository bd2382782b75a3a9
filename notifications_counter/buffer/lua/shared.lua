-- Code that several scripts share. Each script is sent behind it. It gets a single key, ready, and builds the others,
-- which are on the same node of a cluster: in its first lines, USES names them.
-- The beginning of all keys of a counter, and those that do not belong to one owner
local base = KEYS[1]:match('(.*):')
local pending, flushing, state, ready = base .. ':pending', base .. ':flushing', base .. ':state', base .. ':ready'
local intents, in_flight, listeners = base .. ':intents', base .. ':in_flight', base .. ':listeners'

-- The value of ready when the script began, and the generation and the fingerprint in it: '' if there are none, as while
-- it says 'off'
local ready_now = redis.call('GET', ready)
local generation, fingerprint = (ready_now or ''):match('^(%x*):(.+)$')
generation, fingerprint = generation or '', fingerprint or ''

-- Returns the key of an owner's cached total.
-- rule: generation
local function total_of(owner) return base .. ':' .. generation .. ':' .. owner end

-- Returns the cached total at a key, without the flag of an owner in flight (12 or 12!), and the text that is there,
-- which may also be a lease.
local function total_at(key)
  local cached = redis.call('GET', key)
  return cached and cached:match('^(-?%d+)!?$'), cached
end

-- Stands for everyone wherever an owner may stand. No primary key may contain it.
local EVERYONE = '\0'

-- Puts an owner in doubt. There is no total and no lease any more, so the next reader counts rows. Its pending delta is
-- infinite, which stands for unknown, and stays so whatever is added. EVERYONE is in doubt until a generation begins.
local function doubt(owner)
  if owner == EVERYONE then
    -- rule: window (it begins once nobody is silent any more, and `off` shows that somebody may be)
    if ready_now ~= 'off' then redis.call('DEL', ready) end
    return
  end
  -- rule: doubt, rule: lease
  redis.call('DEL', total_of(owner))
  -- rule: touch (without a generation, nobody flushes; the next one looks at everyone)
  if ready_now then redis.call('ZADD', pending, '+inf', owner) end
end

-- Returns whether a number, also as text, is an integer that was not rounded: Lua and sorted sets use doubles.
local function is_exact(number) return math.abs(tonumber(number)) < 2 ^ 53 end

-- Adds a delta to what is pending of an owner, and to its cached total, which keeps its flag if the owner is named by
-- other intents.
local function add(owner, delta, others)
  if delta ~= 0 then redis.call('ZINCRBY', pending, string.format('%.0f', delta), owner) end
  local key = total_of(owner)
  local total = total_at(key)
  local sum = total and is_exact(total) and tonumber(total) + delta
  if sum and is_exact(sum) then
    -- rule: flag_stays
    redis.call('SET', key, string.format('%.0f', sum) .. (others > 0 and '!' or ''), 'KEEPTTL')
  elseif total then
    redis.call('DEL', key)
  end
end

-- Notes since when somebody is pending.
local function note_pending()
  if redis.call('HEXISTS', state, 'pending_since') == 0 and redis.call('EXISTS', pending) == 1 then
    redis.call('HSET', state, 'pending_since', redis.call('TIME')[1])
  end
end

-- Deletes nothing from a hash. After such a first write, Redis allows a script others even without memory.
local function run_without_memory(hash) redis.call('HDEL', hash, '') end

-- Publishes owners whose counts have changed for processes with open streams. These read everyone now and then.
local function tell_listeners(owners)
  if redis.call('EXISTS', listeners) == 0 then return end -- only faster
  local named = {}
  for _, owner in ipairs(owners) do
    if owner ~= EVERYONE then named[#named + 1] = owner end
  end
  if #named > 0 then redis.pcall('PUBLISH', base .. ':live', cjson.encode(named)) end
end

-- Takes an owner of an intent out of flight. Returns how many other intents name the owner.
local function land(owner)
  local others = redis.call('HINCRBY', in_flight, owner, -1)
  if others <= 0 then redis.call('HDEL', in_flight, owner) end
  return others
end

-- Returns the intent in an entry of intents; nothing if there is none, or something else wrote it.
local function intent_of(entry)
  local is_json, intent = pcall(cjson.decode, entry or '')
  if is_json and type(intent) == 'table' and type(intent.owners) == 'table' then return intent end
end
