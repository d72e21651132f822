-- What every script of the ledger begins with, but for `watch` and `looked`.
-- KEYS[1]: what the keys of the tenant begin with. ARGV[1]: msgpack map of what is asked; `now` in µs is
-- Redis' own unless it says one. A value that is not ours ends the script before it has written anything.
local prefix, ask = KEYS[1], cmsgpack.unpack(ARGV[1])
local floor, max, min = math.floor, math.max, math.min
local KEEP_S, TENANT, OURS = 40 * 86400, '', 1

local now = ask.now
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1e6 + time[2]
end
local today = floor(now / 86400e6)

-- nil, or an array that begins with so many numbers.
local function unpacked(value, place, numbers)
  if not value then
    return nil
  end
  local is_ok, record = pcall(cmsgpack.unpack, value)
  is_ok = is_ok and type(record) == 'table'
  for at = 1, is_ok and numbers or 0 do
    is_ok = is_ok and type(record[at]) == 'number'
  end
  if not is_ok then
    error('CORRUPT ' .. place)
  end
  return record
end
