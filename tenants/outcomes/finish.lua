-- KEYS[1] the record; ARGV: owner, ms to keep it, the sealed outcome if it is not too large.
-- Returns 0 if it is not the owner's (any more).
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[3] then redis.call('HSET', KEYS[1], 'sealed', ARGV[3]) end
redis.call('HDEL', KEYS[1], 'owner', 'since')
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
