-- One settlement, once. Returns 1: applied; 2: it corrected the reaper's; 3: it was known; and, to the reaper
-- only, 0: it is not due, for its lease was renewed or its gateway was faster. 3 tells the reaper that it was
-- applied by a call whose answer was not heard. Whatever is reserved under the id is released, even by one
-- that was known: the reserve of a request may arrive after its settlement.
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
local day = opened and opened[3] or stone and stone[1] or ask.day
local money = read_money(day, { TENANT, ask.key_id })
local row = unpacked(redis.call('HGET', USAGE, ask.row), 'usage', 5) or { 0, 0, 0, 0, 0 }
local estimate = read_estimate()
local taken = {}
for at, take in ipairs(opened and opened[5] or {}) do
  taken[at] = { who = take[1], tokens = { take[2], take[3], take[4] }, rates = read_rates(take[1]) }
end

local is_used, added = false, {}
for at = 1, 5 do
  added[at] = is_known and 0 or ask.sums[at] - (stone and stone[2] and stone[2][at] or 0)
  is_used = is_used or added[at] ~= 0
  row[at] = row[at] + added[at]
end
change_money(money, added[5], opened and -opened[4] or 0)
for _, take in ipairs(taken) do
  if take.rates then
    for kind, tokens in ipairs(take.tokens) do
      if tokens >= 0 then
        change_level(take.rates, kind, ask.truth[kind] - tokens)
      end
    end
    write_rates(take.who, take.rates)
  end
end
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
if ask.answer_tokens then
  local step = math.max(1, math.floor(estimate / 64))
  local is_longer = ask.answer_tokens > estimate
  estimate = is_longer and math.min(2 ^ 24, estimate + 9 * step) or math.max(1, estimate - step)
  redis.call('SET', estimate_key(), whole(estimate), 'EX', KEEP_S)
end
return stone and 2 or 1
