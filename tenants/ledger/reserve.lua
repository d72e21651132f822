-- Takes everything that one request asks for, or nothing. Returns the state before, and the granted max_tokens,
-- 0 if refused.
local leases = { [TENANT] = read_leases(TENANT), [ask.key_id] = read_leases(ask.key_id) }
local money = read_money(today, { TENANT, ask.key_id })
local estimate = read_estimate()
local states = {}
for at, scope in ipairs(ask.scopes) do
  states[at] = read_scope(scope, leases[scope.who], money.of[scope.who])
end

local function cost_of(max_tokens)
  local raw = ask.prompt_tokens * ask.input_price + ask.n * max_tokens * ask.output_price
  local rest = raw % 1e6
  return (raw - rest) / 1e6 + (rest > 0 and 1 or 0)
end

-- Most tokens of each answer; -1: not even the prompt. Every product here is below 2^53.
local function payable(available)
  if available >= cost_of(ask.max_tokens) then
    return ask.max_tokens
  end
  local left = available * 1e6 - ask.prompt_tokens * ask.input_price
  local each = ask.n * ask.output_price
  return left < 0 and -1 or (left - left % each) / each
end

local max_tokens = ask.max_tokens
for at, scope in ipairs(ask.scopes) do
  for window, spend in ipairs(states[at].spends) do
    local budget = scope.budgets[window]
    if budget then
      max_tokens = math.min(max_tokens, payable(budget + spend[3] - spend[1] - spend[2]))
    end
  end
end
local is_granted = max_tokens >= math.min(ask.min_tokens, ask.max_tokens)

local takes = {}
for at, scope in ipairs(ask.scopes) do
  local wants = { 1, ask.prompt_tokens, ask.n * math.min(max_tokens, estimate) }
  local take = { scope.who, -1, -1, -1 }
  for kind = 1, 3 do
    local meter = scope.meters[kind]
    if meter then
      take[kind + 1] = kind == 3 and math.min(meter[2], wants[kind]) or wants[kind]
      is_granted = is_granted and states[at].levels[kind] <= (meter[2] - take[kind + 1]) * UNIT
    end
  end
  is_granted = is_granted and (ask.is_purse or not scope.max_concurrency or states[at].leases < scope.max_concurrency)
  takes[at] = take
end
local answer = told(estimate, is_granted and max_tokens or 0, states)
if not is_granted then
  return answer
end

local cost = cost_of(max_tokens)
-- the first to be written is the only key whose type is not known yet
redis.call('HSET', OPEN, ask.id, cmsgpack.pack({ ask.blob, ask.key_id, today, cost, takes, -1, 0, ask.is_purse }))
redis.call('EXPIRE', OPEN, KEEP_S)
if money.is_new then -- a new day
  for _, field in ipairs(redis.call('HKEYS', MONEY)) do
    local kind, number = field:match('^([dm])(%d+)/')
    if kind and tonumber(number) < (kind == 'd' and today or this_month) then
      redis.call('HDEL', MONEY, field)
    end
  end
end
change_money(money, 0, cost)
lease(ask.id, ask.key_id, ask.is_purse, ask.lease_us)
for at, take in ipairs(takes) do
  local rates, is_changed = states[at].rates, false
  for kind = 1, 3 do
    if take[kind + 1] >= 0 then
      change_level(rates, kind, take[kind + 1], ask.scopes[at].meters[kind])
      is_changed = true
    end
  end
  if is_changed then
    write_rates(take[1], rates)
  end
end
return answer
