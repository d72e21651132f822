-- Rates of a scope with one model: {level, per_min, at} of each, touched by takes and corrections of its own only.
local RATES, UNIT, MAX_LEVEL = '<dI4ddI4ddI4dB', 60e6, 15e7 * 60e6

-- Drained to now at `per_min`, without one at the last that held.
local function level_of(rates, kind, per_min)
  local at = 3 * kind
  return max(0, rates[at - 2] - (per_min or rates[at - 1]) * max(0, now - rates[at]))
end

-- So many tokens above `level`, which is that of now.
local function set_level(rates, kind, level, tokens, per_min)
  local at, units = 3 * kind, max(-MAX_LEVEL, min(MAX_LEVEL, tokens * UNIT))
  rates[at - 2] = max(0, min(MAX_LEVEL, level + units))
  rates[at - 1] = per_min or rates[at - 1]
  rates[at] = now
end

local function have_drained(rates)
  return level_of(rates, 1) + level_of(rates, 2) + level_of(rates, 3) == 0
end
