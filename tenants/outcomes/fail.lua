-- KEYS[1] the record; ARGV: owner. Returns 0 if it is not the owner's (any more).
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
