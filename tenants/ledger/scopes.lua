-- A scope is asked for with the `meters` of its three rates, per_min and burst each, both nil without a limit. As it
-- stands it is {levels of the rates, leases, {spent, reserved, credit, forgiven} of the day and of the month}.
local function state_of(scope, account, leases)
  local levels, rates, money = { 0, 0, 0 }, account.rates[scope.who], account.money[scope.who]
  for kind = 1, rates and 3 or 0 do
    levels[kind] = level_of(rates, kind, scope.meters[2 * kind - 1])
  end
  return { levels, leases, { unpack(money, DAY, DAY + 3) }, { unpack(money, MONTH, MONTH + 3) } }
end

local function whos_of(scopes)
  local whos = {}
  for at, scope in ipairs(scopes) do
    whos[at] = scope.who
  end
  return whos
end

-- What Python makes all derived numbers of.
local function told(max_tokens, account, states)
  return cmsgpack.pack({ max_tokens, now, account.estimate, states })
end
