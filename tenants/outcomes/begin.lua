-- Who runs this request? Who asks first, until its lease ends.
-- KEYS[1] the record; ARGV: hash of the body, owner, lease in ms.
-- Returns {0}: begun, {1, ms}: running for so long, {2, sealed}: finished, {3}: too large, {4}: another body,
-- {5}: its tenant had no room.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], 'body', 'owner', 'since', 'sealed', 'no_room')
local body, owner, since, sealed, no_room = unpack(found)
if not body then
  redis.call('HSET', KEYS[1], 'body', ARGV[1], 'owner', ARGV[2], 'since', string.format('%.0f', now))
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {0}
end
if body ~= ARGV[1] then return {4} end
if owner then return {1, tonumber(since) and now - since} end
if sealed then return {2, sealed} end
return {no_room and 5 or 3}
