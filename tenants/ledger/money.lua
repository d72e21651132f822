-- Money of the tenant or of a key: {day, {spent, reserved, credit, forgiven} of that day and of its month}, flat.
local MONEY, DAY, MONTH, MAX_EXACT = '<I3i7i7i7i7i7i7i7i7B', 2, 6, 2 ^ 53

-- Months since the beginning of year 0, of a day since 1970-01-01 (Hinnant's civil_from_days: years begin in
-- March, so that February, the odd one, is last).
local function month_of(day)
  local shifted = day + 719468
  local era = floor(shifted / 146097)
  local day_of_era = shifted - era * 146097
  local year_of_era = floor(
    (day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524) - floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era - (365 * year_of_era + floor(year_of_era / 4) - floor(year_of_era / 100))
  local from_march = floor((5 * day_of_year + 2) / 153)
  return (era * 400 + year_of_era) * 12 + from_march + 2
end

-- Whether the window that held `day` still runs. A day that has not begun by Redis' clock is taken for today.
local function runs(money, window, day)
  return day >= money[1] or window == MONTH and month_of(day) == month_of(money[1])
end

-- What was read, with the windows that have ended begun anew.
local function as_of_today(money)
  if money and money[1] >= today then
    return money
  elseif money and month_of(money[1]) == month_of(today) then
    return { today, 0, 0, 0, 0, money[6], money[7], money[8], money[9], OURS, is_new_day = true }
  end
  return { today, 0, 0, 0, 0, 0, 0, 0, 0, OURS, is_new_day = true }
end

-- So much more in the windows of `day`, as far as they run; what nobody can count exactly stays at the most.
local function change_money(money, day, spent, reserved)
  for window = DAY, MONTH, MONTH - DAY do
    if runs(money, window, day) then
      money[window] = min(MAX_EXACT, money[window] + spent)
      money[window + 1] = max(0, min(MAX_EXACT, money[window + 1] + reserved))
    end
  end
end

local function available(spend, budget)
  return budget + spend[3] - max(0, spend[1] - spend[4]) - spend[2]
end
