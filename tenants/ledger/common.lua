-- What every script of the ledger begins with.
-- KEYS[1]: what the keys of the tenant begin with. ARGV[1]: msgpack map of what is asked; `now` in µs is
-- Redis' own unless it says one. A value that is not ours ends the script before it has written anything.
local prefix, ask = KEYS[1], cmsgpack.unpack(ARGV[1])
local UNIT, MAX_TOKENS = 60e6, 15e7
local KEEP_S, HOUR_MS = 40 * 86400, 3600e3
local OPEN, MONEY, TENANT = prefix .. 'open', prefix .. 'money', ''

local now = ask.now
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1e6 + time[2]
end

local function whole(number)
  return string.format('%.0f', number)
end

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

-- Months since the beginning of year 0, of a day since 1970-01-01 (Hinnant's civil_from_days: years begin in
-- March, so that February, the odd one, is last).
local function month_of(day)
  local floor = math.floor
  local shifted = day + 719468
  local era = floor(shifted / 146097)
  local day_of_era = shifted - era * 146097
  local year_of_era = floor(
    (day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524) - floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era - (365 * year_of_era + floor(year_of_era / 4) - floor(year_of_era / 100))
  local from_march = floor((5 * day_of_year + 2) / 153)
  return (era * 400 + year_of_era) * 12 + from_march + 2
end

local today = math.floor(now / 86400e6)
local this_month = month_of(today)

-- Rates of a scope with one model: {level, per_min, at} of each, touched by takes and corrections of its own only.

local function rates_key(who)
  return prefix .. 'rates:' .. who .. ':' .. ask.model
end

local function read_rates(who)
  return unpacked(redis.call('GET', rates_key(who)), 'rates', 9)
end

-- Drained to now, at the rate of `meter` {per_min, burst} if there is one, else at the last that held.
local function level_of(rates, kind, meter)
  local at = 3 * kind - 2
  local per_min = meter and meter[1] or rates[at + 1]
  return math.max(0, rates[at] - per_min * math.max(0, now - rates[at + 2]))
end

local function change_level(rates, kind, tokens, meter)
  local at = 3 * kind - 2
  local units = math.max(-MAX_TOKENS, math.min(MAX_TOKENS, tokens)) * UNIT
  rates[at] = math.min(MAX_TOKENS * UNIT, math.max(0, level_of(rates, kind, meter) + units))
  rates[at + 1] = meter and meter[1] or rates[at + 1]
  rates[at + 2] = now
end

-- Forgotten an hour after the slowest of them has drained.
local function write_rates(who, rates)
  local drains_us = 0
  for at = 1, 7, 3 do
    if rates[at + 1] > 0 then
      drains_us = math.max(drains_us, rates[at] / rates[at + 1])
    end
  end
  local ttl_ms = whole(math.ceil(drains_us / 1e3) + HOUR_MS)
  redis.call('SET', rates_key(who), cmsgpack.pack(rates), 'PX', ttl_ms)
end

local function estimate_key()
  return prefix .. 'output:' .. ask.model
end

local function read_estimate()
  local value = redis.call('GET', estimate_key())
  local estimate = value and tonumber(value) or 256
  if value and not tonumber(value) then
    error('CORRUPT output')
  end
  return estimate
end

-- Money of the tenant and of keys, in the two windows of one day: {spent, reserved, credit} each.

local function read_money(day, whos)
  local month, fields = month_of(day), {}
  for _, who in ipairs(whos) do
    fields[#fields + 1] = 'd' .. day .. '/' .. who
    fields[#fields + 1] = 'm' .. month .. '/' .. who
  end
  local values = redis.call('HMGET', MONEY, unpack(fields))
  local money = { fields = fields, spends = {}, of = {}, is_new = not values[1] }
  for at, value in ipairs(values) do
    money.spends[at] = unpacked(value, 'money', 3) or { 0, 0, 0 }
  end
  for at, who in ipairs(whos) do
    money.of[who] = { money.spends[2 * at - 1], money.spends[2 * at] }
  end
  money.ended = { day < today, month < this_month }
  return money
end

-- So much more in all of them that have not ended.
local function change_money(money, spent, reserved)
  local changes = {}
  for at, spend in ipairs(money.spends) do
    if not money.ended[2 - at % 2] and (spent ~= 0 or reserved ~= 0) then
      spend[1], spend[2] = spend[1] + spent, math.max(0, spend[2] + reserved)
      changes[#changes + 1] = money.fields[at]
      changes[#changes + 1] = cmsgpack.pack(spend)
    end
  end
  if #changes > 0 then
    redis.call('HSET', MONEY, unpack(changes))
    redis.call('EXPIRE', MONEY, KEEP_S)
  end
end

-- An open reservation: {blob, key id, day, cost, takes {who, tokens, tokens, tokens} or -1, cached tokens or
-- -1 before the first renewal, completion tokens, whether it is a purse}.
local OPEN_TYPES = { 'string', 'string', 'number', 'number', 'table', 'number', 'number', 'boolean' }

local function read_open(id)
  local opened = unpacked(redis.call('HGET', OPEN, id), 'open', 0)
  for at, kind in ipairs(opened and OPEN_TYPES or {}) do
    if type(opened[at]) ~= kind then
      error('CORRUPT open')
    end
  end
  return opened
end

-- Where leases stand: those of requests with the tenant and with the key; those of purses are no requests.

local LEASES, PURSES = prefix .. 'leases:', prefix .. 'purses'

local function lease_keys(key_id, is_purse)
  return is_purse and { PURSES } or { LEASES .. TENANT, LEASES .. key_id }
end

local function lease(id, key_id, is_purse, lease_us)
  for _, key in ipairs(lease_keys(key_id, is_purse)) do
    redis.call('ZADD', key, now + lease_us, id)
    redis.call('EXPIRE', key, KEEP_S)
  end
end

-- Requests whose lease has not ended.
local function read_leases(who)
  return redis.call('ZCOUNT', LEASES .. who, '(' .. whole(now), '+inf')
end

-- One scope of `ask.scopes`, as it stands.
local function read_scope(scope, leases, spends)
  local rates = read_rates(scope.who) or { 0, 0, now, 0, 0, now, 0, 0, now }
  local levels = {}
  for kind = 1, 3 do
    levels[kind] = level_of(rates, kind, scope.meters[kind])
  end
  return { rates = rates, levels = levels, leases = leases, spends = spends }
end

-- What Python makes all derived numbers of.
local function told(estimate, max_tokens, states)
  local scopes = {}
  for at, state in ipairs(states) do
    scopes[at] = { state.levels, state.leases, state.spends[1], state.spends[2] }
  end
  return cmsgpack.pack({ max_tokens, now, estimate, scopes })
end
