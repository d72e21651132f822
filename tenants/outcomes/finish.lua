-- KEYS[1] the record, KEYS[2] how much its tenant has stored; ARGV: owner, ms to keep it, the most outcomes of a
-- tenant, and bytes of them, the sealed outcome if it is not too large.
-- Returns 0 if it is not the owner's (any more), 1: stored, 2: too large, 3: its tenant has no room.
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
local keep, sealed, result = tonumber(ARGV[2]), ARGV[5], 2
if sealed then
  -- By 24th parts of the time that outcomes are kept: '<number> <bytes>' of those that were stored in each.
  local time = redis.call('TIME')
  local part = math.floor((time[1] * 1000 + math.floor(time[2] / 1000)) / (keep / 24))
  local this, num, bytes = {0, 0}, 0, 0
  local parts = redis.call('HGETALL', KEYS[2])
  for at = 1, #parts, 2 do
    local n, b = string.match(parts[at + 1], '^(%d+) (%d+)$')
    if part - tonumber(parts[at]) > 24 then
      redis.call('HDEL', KEYS[2], parts[at])
    else
      num, bytes = num + n, bytes + b
      if tonumber(parts[at]) == part then this = {n, b} end
    end
  end
  result = 3
  if num < tonumber(ARGV[3]) and bytes + #sealed <= tonumber(ARGV[4]) then
    redis.call('HSET', KEYS[2], part, string.format('%.0f %.0f', this[1] + 1, this[2] + #sealed))
    redis.call('PEXPIRE', KEYS[2], math.ceil(keep * 25 / 24))
    redis.call('HSET', KEYS[1], 'sealed', sealed)
    result = 1
  else
    redis.call('HSET', KEYS[1], 'no_room', 1)
  end
end
redis.call('HDEL', KEYS[1], 'owner', 'since')
redis.call('PEXPIRE', KEYS[1], keep)
return result
