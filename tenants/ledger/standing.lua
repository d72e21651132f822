-- The state that a reserve would find.
local whos, states = whos_of(ask.scopes), {}
local account = read_account(whos, whos)
for at, scope in ipairs(ask.scopes) do
  states[at] = state_of(scope, account, read_leases(scope.who))
end
return told(0, account, states)
