-- One top-up or reset, once. Returns 1: applied; 3: it was known. What was forgiven may be more than is known
-- to be spent: after a loss that is told piece by piece.
local SETTLED = prefix .. 'settled:' .. ask.hour
if redis.call('HEXISTS', SETTLED, ask.id) == 1 then
  return 3
end
local account = read_account({ ask.who }, {})
local money, window = account.money[ask.who], ask.window == 'day' and DAY or MONTH
redis.call('HSET', SETTLED, ask.id, cmsgpack.pack({ ask.day }))
redis.call('EXPIRE', SETTLED, ask.tombstone_s)
if runs(money, window, ask.day) then
  money[window + 2] = max(-ask.max_credit, min(ask.max_credit, money[window + 2] + ask.credit))
  money[window + 3] = max(money[window + 3], ask.forgiven)
  write_account({ money = account.money })
end
return 1
