-- All that is counted of a tenant is one hash: one command reads what a request needs of it, one writes it.
-- money:<who> and rates:<who>:<model> are numbers as `struct` packs them, with OURS behind them, within the 64
-- bytes up to which Redis keeps a hash compact; output:<model> is the running p90 of output length.
local ACCOUNT, MODEL = prefix .. 'account', ask.model or ''

-- nil if they are not ours.
local function numbers(value, format)
  local is_ours = #value == struct.size(format) and value:byte(-1) == OURS
  return is_ours and { struct.unpack(format, value) } or nil
end

local function checked(value, format, place)
  return value and (numbers(value, format) or error('CORRUPT ' .. place)) or nil
end

-- {estimate, money of each of `payers`, rates of each of `takers` that has some}
local function read_account(payers, takers)
  local fields = { 'output:' .. MODEL }
  for _, who in ipairs(payers) do
    fields[#fields + 1] = 'money:' .. who
  end
  for _, who in ipairs(takers) do
    fields[#fields + 1] = 'rates:' .. who .. ':' .. MODEL
  end
  local values = redis.call('HMGET', ACCOUNT, unpack(fields))
  local account = { estimate = 256, money = {}, rates = {} }
  if values[1] then
    account.estimate = tonumber(values[1]) or error('CORRUPT output')
  end
  for at, who in ipairs(payers) do
    account.money[who] = as_of_today(checked(values[1 + at], MONEY, 'money'))
  end
  for at, who in ipairs(takers) do
    account.rates[who] = checked(values[1 + #payers + at], RATES, 'rates')
  end
  return account
end

local function write_account(changed)
  local values = {}
  for who, money in pairs(changed.money or {}) do
    values[#values + 1] = 'money:' .. who
    values[#values + 1] = struct.pack(MONEY, unpack(money))
  end
  for who, rates in pairs(changed.rates or {}) do
    values[#values + 1] = 'rates:' .. who .. ':' .. MODEL
    values[#values + 1] = struct.pack(RATES, unpack(rates))
  end
  if changed.estimate then
    values[#values + 1] = 'output:' .. MODEL
    values[#values + 1] = changed.estimate
  end
  if #values > 0 then
    redis.call('HSET', ACCOUNT, unpack(values))
    redis.call('EXPIRE', ACCOUNT, KEEP_S)
  end
end

-- Money of months that have ended and rates that have drained say nothing any more.
local function tidy_account()
  local read = redis.call('HGETALL', ACCOUNT)
  for at = 1, #read, 2 do
    local field, value = read[at], read[at + 1]
    local money = field:find('^money:') and numbers(value, MONEY)
    local rates = field:find('^rates:') and numbers(value, RATES)
    if money and month_of(money[1]) < month_of(today) or rates and have_drained(rates) then
      redis.call('HDEL', ACCOUNT, field)
    end
  end
end
