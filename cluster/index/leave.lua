-- KEYS: aborts left for one incarnation. ARGV: their TTL, s; most of them; then each abort.
for at = 3, #ARGV do
  redis.call('RPUSH', KEYS[1], ARGV[at])
end
redis.call('LTRIM', KEYS[1], -ARGV[2], -1)
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
