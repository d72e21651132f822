-- Takes everything that one request asks for, or nothing. Returns the state before, and the granted max_tokens,
-- 0 if refused.
local leases = { [TENANT] = read_leases(TENANT), [ask.key_id] = read_leases(ask.key_id) }
local account, states = read_account({ TENANT, ask.key_id }, whos_of(ask.scopes)), {}
for at, scope in ipairs(ask.scopes) do
  states[at] = state_of(scope, account, leases[scope.who])
end

local function cost_of(max_tokens)
  local raw = ask.prompt_tokens * ask.input_price + ask.n * max_tokens * ask.output_price
  local rest = raw % 1e6
  return (raw - rest) / 1e6 + (rest > 0 and 1 or 0)
end

-- Most tokens of each answer; -1: not even the prompt. Every product here is below 2^53.
local most_cost = cost_of(ask.max_tokens)
local function payable(money_left)
  if money_left >= most_cost then
    return ask.max_tokens
  end
  local left = money_left * 1e6 - ask.prompt_tokens * ask.input_price
  local each = ask.n * ask.output_price
  return left < 0 and -1 or (left - left % each) / each
end

local max_tokens = ask.max_tokens
for at, scope in ipairs(ask.scopes) do
  for window = 1, 2 do
    local budget = scope.budgets[window]
    if budget then
      max_tokens = min(max_tokens, payable(available(states[at][2 + window], budget)))
    end
  end
end
local is_granted = max_tokens >= min(ask.min_tokens, ask.max_tokens)

local takes = {}
for at, scope in ipairs(ask.scopes) do
  local levels, running = states[at][1], states[at][2]
  local wants = { 1, ask.prompt_tokens, ask.n * min(max_tokens, account.estimate) }
  local take = { scope.who, -1, -1, -1 }
  for kind = 1, 3 do
    local burst = scope.meters[2 * kind]
    if burst then
      take[kind + 1] = kind == 3 and min(burst, wants[kind]) or wants[kind]
      is_granted = is_granted and levels[kind] <= (burst - take[kind + 1]) * UNIT
    end
  end
  is_granted = is_granted and (ask.is_purse or not scope.max_concurrency or running < scope.max_concurrency)
  takes[at] = take
end
local answer = told(is_granted and max_tokens or 0, account, states)
if not is_granted then
  return answer
end

-- a clock that was set back goes on in the windows that it has seen
local day = max(today, account.money[TENANT][1])
local cost, rates = cost_of(max_tokens), {}
for _, money in pairs(account.money) do
  change_money(money, day, 0, cost)
end
for at, scope in ipairs(ask.scopes) do
  for kind = 1, 3 do
    local per_min, who = scope.meters[2 * kind - 1], scope.who
    if per_min then
      rates[who] = rates[who] or account.rates[who] or { 0, 0, now, 0, 0, now, 0, 0, now, OURS }
      set_level(rates[who], kind, states[at][1][kind], takes[at][kind + 1], per_min)
    end
  end
end

-- the first to be written is the only key whose type is not known yet
redis.call('HSET', OPEN, ask.id, cmsgpack.pack({ ask.blob, ask.key_id, day, cost, takes, -1, 0, ask.is_purse }))
redis.call('EXPIRE', OPEN, KEEP_S)
if account.money[TENANT].is_new_day then
  tidy_account()
end
write_account({ money = account.money, rates = rates })
lease(ask.id, ask.key_id, ask.is_purse, ask.lease_us)
return answer
