-- KEYS: what the keys of one root's entries begin with. ARGV: own incarnation; dead ones, 4 bytes each;
-- hashes of stored blocks, 16 bytes each; of evicted ones; TTL of an entry, s; most holders of one.
-- Returns how many claims of its own it added or removed. What stands in an entry may be anything.
local own, ttl, max_holders = ARGV[1], ARGV[5], ARGV[6]
local gone = {}
for at = 1, #ARGV[2], 4 do
  gone[ARGV[2]:sub(at, at + 3)] = true
end

-- The other holders of an entry that are not known to be dead, and whether it is held by ourselves.
local function read(key)
  local value = redis.pcall('GETRANGE', key, 0, 4 * max_holders - 1)
  local others, is_held = {}, false
  for at = 1, type(value) == 'string' and #value - 3 or 0, 4 do
    local holder = value:sub(at, at + 3)
    if holder == own then
      is_held = true
    elseif not gone[holder] then
      others[#others + 1] = holder
    end
  end
  return table.concat(others), is_held
end

local function each(hashes, tell)
  for at = 1, #hashes, 16 do
    local key = KEYS[1] .. hashes:sub(at, at + 15)
    tell(key, read(key))
  end
end

local changed = 0
each(ARGV[3], function(key, others, is_held)
  redis.call('SET', key, others:sub(-4 * (max_holders - 1)) .. own, 'EX', ttl)
  changed = changed + (is_held and 0 or 1)
end)
each(ARGV[4], function(key, others, is_held)
  if not is_held then
    return
  end
  if others == '' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, others, 'EX', ttl)
  end
  changed = changed + 1
end)
return changed
