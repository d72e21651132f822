-- One settlement, once. Returns 1: applied; 2: it corrected the reaper's; 3: it was known; and, to the reaper
-- only, 0: it is not due, for its lease was renewed or its gateway was faster. 3 tells the reaper that it was
-- applied by a call whose answer was not heard. Whatever is reserved under the id is released, even by one
-- that was known: the reserve of a request may arrive after its settlement.
local function moved(estimate, answer_tokens)
  local step = max(1, floor(estimate / 64))
  local is_longer = answer_tokens > estimate
  return is_longer and min(2 ^ 24, estimate + 9 * step) or max(1, estimate - step)
end

local SETTLED, USAGE = prefix .. 'settled:' .. ask.hour, prefix .. 'usage:' .. ask.usage_day
local opened = read_open(ask.id)
-- {day, sums of what the reaper settled}; without the sums it is final
local stone = unpacked(redis.call('HGET', SETTLED, ask.id), 'settled', 1)
if ask.is_reaper then
  if not opened then
    return stone and stone[2] and 3 or 0
  end
  local ends = redis.call('ZSCORE', lease_keys(opened[2], opened[8])[1], ask.id)
  if ends and tonumber(ends) > now then
    return 0
  end
end

local is_known = stone and not (stone[2] and not ask.is_reaped)
local day = opened and opened[3] or stone and stone[1] or min(ask.day, today)
local takes, takers = opened and opened[5] or {}, {}
for at, take in ipairs(takes) do
  takers[at] = take[1]
end
local account = read_account({ TENANT, ask.key_id }, takers)
local row = unpacked(redis.call('HGET', USAGE, ask.row), 'usage', 5) or { 0, 0, 0, 0, 0 }

local is_used, added = false, {}
for at = 1, 5 do
  added[at] = is_known and 0 or ask.sums[at] - (stone and stone[2] and stone[2][at] or 0)
  is_used = is_used or added[at] ~= 0
  row[at] = row[at] + added[at]
end
local reserved = opened and -opened[4] or 0
local is_charged = (added[5] ~= 0 or reserved ~= 0) and runs(account.money[TENANT], MONTH, day)
for _, money in pairs(account.money) do
  change_money(money, day, added[5], reserved)
end
for _, take in ipairs(takes) do
  local rates = account.rates[take[1]]
  for kind = 1, rates and 3 or 0 do
    if take[kind + 1] >= 0 then
      set_level(rates, kind, level_of(rates, kind), ask.truth[kind] - take[kind + 1])
    end
  end
end
local estimate = not is_known and ask.answer_tokens and moved(account.estimate, ask.answer_tokens)
write_account({ money = is_charged and account.money, rates = account.rates, estimate = estimate })
redis.call('HDEL', OPEN, ask.id)
for _, key in ipairs(lease_keys(ask.key_id, opened and opened[8])) do
  redis.call('ZREM', key, ask.id)
end
if is_known then
  return ask.is_reaper and 0 or 3
end
redis.call('HSET', SETTLED, ask.id, cmsgpack.pack(ask.is_reaped and { day, ask.sums } or { day }))
redis.call('EXPIRE', SETTLED, ask.tombstone_s)
if is_used then
  redis.call('HSET', USAGE, ask.row, cmsgpack.pack(row))
  redis.call('EXPIRE', USAGE, ask.usage_s)
end
return stone and 2 or 1
