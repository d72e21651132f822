-- The state that a reserve would find.
local states, whos = {}, {}
for at, scope in ipairs(ask.scopes) do
  whos[at] = scope.who
end
local money = #whos > 0 and read_money(today, whos)
for at, scope in ipairs(ask.scopes) do
  states[at] = read_scope(scope, read_leases(scope.who), money.of[scope.who])
end
return told(read_estimate(), 0, states)
