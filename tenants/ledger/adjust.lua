-- A top-up by `amount`, or without one a reset: what was spent is forgiven.
local money = read_money(today, { ask.who })
local at = ask.window == 'day' and 1 or 2
local spend = money.spends[at]
local credit = ask.amount and spend[3] + ask.amount or math.max(spend[3], spend[1])
spend[3] = math.max(-ask.max_credit, math.min(ask.max_credit, credit))
redis.call('HSET', MONEY, money.fields[at], cmsgpack.pack(spend))
redis.call('EXPIRE', MONEY, KEEP_S)
return 1
